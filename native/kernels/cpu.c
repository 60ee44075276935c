#include "cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <stdatomic.h>

static int bit(unsigned word, int n) { return (int)(word >> n & 1); }

// Returns the register state that the system saves and restores. A processor may have vector registers that the system
// does not save.
static uint64_t saved_state(void) {
    uint32_t low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

uint32_t uma_cpu_features(void) {
    unsigned a, b, c, d, b7, c7, a71 = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !bit(c, 27)) return 0;
    const int has_fma_f16c = bit(c, 12) && bit(c, 29);
    const uint64_t state = saved_state();
    const int has_ymm = (state & 0x06) == 0x06, has_zmm = (state & 0xe6) == 0xe6;
    if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d)) return 0;
    if (a >= 1) __get_cpuid_count(7, 1, &a71, &b, &c, &d);
    uint32_t features = 0;
    if (has_ymm && has_fma_f16c && bit(b7, 5)) features |= UMA_CPU_AVX2;
    if (has_zmm && bit(b7, 16) && bit(b7, 17) && bit(b7, 30) && bit(b7, 31)) features |= UMA_CPU_AVX512;
    if (has_zmm && bit(c7, 11)) features |= UMA_CPU_AVX512_VNNI;
    if (has_ymm && bit(a71, 4)) features |= UMA_CPU_AVX_VNNI;
    return features;
}

int uma_cpu_is_amd(void) {
    enum { UNKNOWN, NO, YES };
    static atomic_int known;
    int is = atomic_load_explicit(&known, memory_order_relaxed);
    if (is == UNKNOWN) {
        unsigned a, b = 0, c, d;
        __get_cpuid(0, &a, &b, &c, &d);
        is = b == signature_AMD_ebx ? YES : NO;
        atomic_store_explicit(&known, is, memory_order_relaxed);
    }
    return is == YES;
}

#elif defined(__aarch64__) && defined(__APPLE__)
#include <stddef.h>
#include <sys/sysctl.h>

static int has(const char * name) {
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname(name, &value, &size, NULL, 0) == 0 && value == 1;
}

uint32_t uma_cpu_features(void) {
    return (has("hw.optional.arm.FEAT_DotProd") ? UMA_CPU_DOTPROD : 0) | (has("hw.optional.arm.FEAT_I8MM")
        ? UMA_CPU_I8MM : 0);
}

#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>

uint32_t uma_cpu_features(void) {
    const unsigned long dotprod = 1ul << 20, i8mm = 1ul << 13; // HWCAP_ASIMDDP and HWCAP2_I8MM
    return (getauxval(AT_HWCAP) & dotprod ? UMA_CPU_DOTPROD : 0) | (getauxval(AT_HWCAP2) & i8mm ? UMA_CPU_I8MM : 0);
}

#else

uint32_t uma_cpu_features(void) { return 0; }

#endif

#if !defined(__x86_64__)
int uma_cpu_is_amd(void) { return 0; }
#endif
