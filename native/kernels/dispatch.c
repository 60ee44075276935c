// Lists the kernels of this build and picks the best that this processor can run.
#include "cpu.h"
#include "kernels.h"

#include <stdatomic.h>
#include <string.h>

extern const struct uma_mm_table uma_mm_portable;
extern const struct uma_attn_table uma_attn_portable;

#if defined(__x86_64__)
extern const struct uma_mm_table uma_mm_avx512vnni, uma_mm_avx512, uma_mm_avxvnni, uma_mm_avx2;
extern const struct uma_attn_table uma_attn_avx512, uma_attn_avx2;
#elif defined(__aarch64__)
extern const struct uma_mm_table uma_mm_neon_i8mm, uma_mm_neon_dotprod, uma_mm_neon;
extern const struct uma_attn_table uma_attn_neon;
#endif

static const struct {
    struct uma_kernels kernels;
    uint32_t needs;
} TABLES[] = { // best first
#if defined(__x86_64__)
    { { "avx512vnni", &uma_mm_avx512vnni, &uma_attn_avx512 }, UMA_CPU_AVX2 | UMA_CPU_AVX512 | UMA_CPU_AVX512_VNNI },
    { { "avx512", &uma_mm_avx512, &uma_attn_avx512 }, UMA_CPU_AVX2 | UMA_CPU_AVX512 },
    { { "avxvnni", &uma_mm_avxvnni, &uma_attn_avx2 }, UMA_CPU_AVX2 | UMA_CPU_AVX_VNNI },
    { { "avx2", &uma_mm_avx2, &uma_attn_avx2 }, UMA_CPU_AVX2 },
#elif defined(__aarch64__)
    { { "neon-i8mm", &uma_mm_neon_i8mm, &uma_attn_neon }, UMA_CPU_DOTPROD | UMA_CPU_I8MM },
    { { "neon-dotprod", &uma_mm_neon_dotprod, &uma_attn_neon }, UMA_CPU_DOTPROD },
    { { "neon", &uma_mm_neon, &uma_attn_neon }, 0 },
#endif
    { { "portable", &uma_mm_portable, &uma_attn_portable }, 0 },
};

enum { N_TABLES = sizeof TABLES / sizeof *TABLES };

static int can_run(int i) { return (uma_cpu_features() & TABLES[i].needs) == TABLES[i].needs; }

static _Atomic(const struct uma_kernels *) chosen;

const struct uma_kernels * uma_kernels(void) {
    const struct uma_kernels * k = atomic_load_explicit(&chosen, memory_order_acquire);
    for (int i = 0; !k; i++) {
        if (can_run(i)) k = &TABLES[i].kernels;
    }
    atomic_store_explicit(&chosen, k, memory_order_release);
    return k;
}

int uma_kernels_use(const char * name) {
    const struct uma_kernels * k = name ? uma_kernels_named(name) : NULL;
    if (k || !name) atomic_store_explicit(&chosen, k, memory_order_release);
    return k || !name ? 0 : -1;
}

const struct uma_kernels * uma_kernels_named(const char * name) {
    for (int i = 0; i < N_TABLES; i++) {
        if (strcmp(TABLES[i].kernels.name, name) == 0) return can_run(i) ? &TABLES[i].kernels : NULL;
    }
    return NULL;
}
