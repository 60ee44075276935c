// The instructions that this processor and its operating system can run.
#ifndef UMA_CPU_H
#define UMA_CPU_H

#include <stdint.h>

enum {
    UMA_CPU_AVX2 = 1 << 0,   // with FMA and F16C
    UMA_CPU_AVX512 = 1 << 1, // F, BW, DQ and VL
    UMA_CPU_AVX512_VNNI = 1 << 2,
    UMA_CPU_AVX_VNNI = 1 << 3,
    UMA_CPU_DOTPROD = 1 << 4,
    UMA_CPU_I8MM = 1 << 5,
};

uint32_t uma_cpu_features(void);

// Returns whether this is an AMD processor. CPUID is asked only once, because it takes microseconds in a virtual
// machine.
int uma_cpu_is_amd(void);

#endif
