// Lists the instructions that this processor and its operating system can run, by their names in /proc/cpuinfo. This is
// a library of its own, compiled for any processor of the architecture, because it is asked before anything else is
// loaded.
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>

enum { A, B, C, D };
// registers that the system has to save and restore (XCR0)
enum { NO_STATE = 0, YMM = 0x06, ZMM = 0xe6, TILES = 0x60000 };

static const struct {
    const char * name;
    unsigned     leaf, subleaf, word, bit;
    uint64_t     state;
} FEATURES[] = {
    { "pni", 1, 0, C, 0, NO_STATE },
    { "ssse3", 1, 0, C, 9, NO_STATE },
    { "fma", 1, 0, C, 12, YMM },
    { "sse4_1", 1, 0, C, 19, NO_STATE },
    { "sse4_2", 1, 0, C, 20, NO_STATE },
    { "movbe", 1, 0, C, 22, NO_STATE },
    { "popcnt", 1, 0, C, 23, NO_STATE },
    { "avx", 1, 0, C, 28, YMM },
    { "f16c", 1, 0, C, 29, YMM },
    { "lzcnt", 0x80000001, 0, C, 5, NO_STATE },
    { "bmi1", 7, 0, B, 3, NO_STATE },
    { "avx2", 7, 0, B, 5, YMM },
    { "bmi2", 7, 0, B, 8, NO_STATE },
    { "avx512f", 7, 0, B, 16, ZMM },
    { "avx512dq", 7, 0, B, 17, ZMM },
    { "avx512ifma", 7, 0, B, 21, ZMM },
    { "avx512cd", 7, 0, B, 28, ZMM },
    { "avx512bw", 7, 0, B, 30, ZMM },
    { "avx512vl", 7, 0, B, 31, ZMM },
    { "avx512vbmi", 7, 0, C, 1, ZMM },
    { "avx512_vbmi2", 7, 0, C, 6, ZMM },
    { "gfni", 7, 0, C, 8, NO_STATE },
    { "vaes", 7, 0, C, 9, YMM },
    { "vpclmulqdq", 7, 0, C, 10, YMM },
    { "avx512_vnni", 7, 0, C, 11, ZMM },
    { "avx512_bitalg", 7, 0, C, 12, ZMM },
    { "avx512_vpopcntdq", 7, 0, C, 14, ZMM },
    { "avx512_vp2intersect", 7, 0, D, 8, ZMM },
    { "amx_bf16", 7, 0, D, 22, TILES },
    { "avx512_fp16", 7, 0, D, 23, ZMM },
    { "amx_tile", 7, 0, D, 24, TILES },
    { "amx_int8", 7, 0, D, 25, TILES },
    { "avx_vnni", 7, 1, A, 4, YMM },
    { "avx512_bf16", 7, 1, A, 5, ZMM },
    { "avx_ifma", 7, 1, A, 23, YMM },
    { "avx_vnni_int8", 7, 1, D, 4, YMM },
    { "avx_ne_convert", 7, 1, D, 5, YMM },
};

static uint64_t saved_state(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1)) {
        return 0;
    }
    uint32_t low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t) high << 32 | low;
}

static int has(size_t i, uint64_t state) {
    unsigned words[4], most;
    if (FEATURES[i].subleaf > 0
        && (!__get_cpuid_count(FEATURES[i].leaf, 0, &most, &words[B], &words[C], &words[D])
            || most < FEATURES[i].subleaf)) {
        return 0;
    }
    if (!__get_cpuid_count(FEATURES[i].leaf, FEATURES[i].subleaf, &words[A], &words[B], &words[C], &words[D])) {
        return 0;
    }
    return (words[FEATURES[i].word] >> FEATURES[i].bit & 1) && (state & FEATURES[i].state) == FEATURES[i].state;
}

#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>

static const struct {
    const char *  name;
    unsigned long vector; // AT_HWCAP or AT_HWCAP2
    unsigned      bit;
} FEATURES[] = {
    { "atomics", AT_HWCAP, 8 },
        { "asimdhp", AT_HWCAP, 10 }, { "asimdrdm", AT_HWCAP, 12 }, { "asimddp", AT_HWCAP, 20 }, { "sve", AT_HWCAP, 22 },
    { "asimdfhm", AT_HWCAP, 23 }, { "sve2", AT_HWCAP2, 1 },    { "svei8mm", AT_HWCAP2, 9 },  { "i8mm", AT_HWCAP2, 13 },
        { "bf16", AT_HWCAP2, 14 },
    { "sme", AT_HWCAP2, 23 },
};

static uint64_t saved_state(void) { return 0; }

static int has(size_t i, uint64_t state) {
    (void) state;
    return getauxval(FEATURES[i].vector) >> FEATURES[i].bit & 1;
}

#else

static const struct { const char * name; } FEATURES[] = { { "" } };

static uint64_t saved_state(void) { return 0; }

static int has(size_t i, uint64_t state) { return (void) i, (void) state, 0; }

#endif

__attribute__((visibility("default"))) const char * uma_processor(void) {
    static char    names[1024];
    const uint64_t state = saved_state();
    names[0] = 0;
    for (size_t i = 0; i < sizeof(FEATURES) / sizeof(*FEATURES); i++) {
        if (has(i, state) && strlen(names) + strlen(FEATURES[i].name) + 2 < sizeof(names)) {
            strcat(strcat(names, " "), FEATURES[i].name);
        }
    }
    return names;
}
