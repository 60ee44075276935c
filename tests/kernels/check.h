// Shared by the kernel checks: a seeded generator, and the error measure.
// A check compares with f64 arithmetic on the same quantised values, so only f32 rounding may differ.
#ifndef CHECK_H
#define CHECK_H

#include "kernels/kernels.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct tally {
    long n_cases, n_values, n_bad;
    double worst; // largest error in units of the tolerance
};

static inline uint32_t rand_u32(void) {
    static uint64_t state = 0x9e3779b97f4a7c15u;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

static inline int rand_below(int n) { return (int)(rand_u32() % (uint32_t)n); }
static inline float rand_float(void) { return (float)((int32_t)rand_u32()) / 2147483648.0f; }

// Allocates exactly this many bytes, so that a sanitizer sees every access beyond them. Only new_aligned gives an
// address that is a multiple of 64.
static inline void * new_bytes(size_t n) {
    void * p = malloc(n ? n : 1);
    if (!p) abort();
    return p;
}

static inline void * new_aligned(size_t n) {
    void * p = NULL;
    if (posix_memalign(&p, 64, n ? n : 1)) abort();
    return p;
}

// |got - want| against `scale`, the size of the terms that were summed.
static inline void judge(struct tally * t, double got, double want, double scale, double tolerance) {
    const double error = fabs(got - want) / (tolerance * (scale + 1e-30));
    t->n_values++;
    if (!(error <= 1.0)) t->n_bad++;
    if (!(error <= t->worst)) t->worst = error;
}

double f16_value(uint16_t h);
uint16_t f16_bits(float f); // nearest; |f| below the largest f16

void check_mm(const struct uma_kernels * k, int one_in, struct tally * t);
void check_attn(const struct uma_kernels * k, int one_in, struct tally * t);

#endif
