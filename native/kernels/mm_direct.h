// Products of f32 rows by f16, bf16 and f32 weights: dot products along the weight rows, each summed in the same order
// for any number of rows.
#ifndef UMA_MM_DIRECT_H
#define UMA_MM_DIRECT_H

#include "mm_acts.h"

// Weight rows and rows of x that are multiplied at once; then how many weight rows are multiplied by all rows of x
// before the next ones, so that they stay in the second-level cache.
enum { DIRECT_OUTS = 4, DIRECT_ROWS = V_DIRECT_ROWS, DIRECT_RUN = 32 };

V_INLINE vf direct_load(const uint8_t * p, const enum uma_type type) {
    if (type == UMA_F32) return vf_load((const float *)(const void *)p);
    return type == UMA_BF16 ? vf_load_bf16(p) : vf_load_f16(p);
}

static inline float direct_one(const uint8_t * p, enum uma_type type) {
    float f;
    if (type != UMA_F32) return type == UMA_BF16 ? uma_bf16_to_f32(uma_u16(p)) : uma_f16_to_f32(uma_u16(p));
    memcpy(&f, p, 4);
    return f;
}

// Computes out[i][r] for 4 weight rows and NX rows of x over n columns. Prefetches the next 4 weight rows, which are
// one run of bytes.
V_INLINE void direct_dots(const uint8_t * w, size_t w_stride, const float * const * x, int64_t n,
    float out[DIRECT_OUTS][DIRECT_ROWS], const int NX,
                          const enum uma_type type) {
    const size_t size = type == UMA_F32 ? 4 : 2;
    vf sum[DIRECT_OUTS][DIRECT_ROWS];
    uintptr_t ahead = (uintptr_t)w + DIRECT_OUTS * w_stride;
    for (int i = 0; i < DIRECT_OUTS * DIRECT_ROWS; i++) sum[i / DIRECT_ROWS][i % DIRECT_ROWS] = vf_set1(0);
    int64_t c = 0;
    for (; c + V_LANES <= n; c += V_LANES) {
        for (size_t b = 0; b < V_LANES * size * DIRECT_OUTS; b += 64, ahead += 64)
            __builtin_prefetch((const void *)ahead, 0, 2);
        V_UNROLL for (int i = 0; i < DIRECT_OUTS; i++) {
            const vf a = direct_load(w + (size_t)i * w_stride + size * (size_t)c, type);
            V_UNROLL for (int r = 0; r < NX; r++) sum[i][r] = vf_fma(a, vf_load(x[r] + c), sum[i][r]);
        }
    }
    for (int i = 0; i < DIRECT_OUTS; i++) {
        for (int r = 0; r < NX; r++) {
            out[i][r] = vf_sum(sum[i][r]);
            for (int64_t j = c; j < n; j++) out[i][r] += direct_one(w + (size_t)i * w_stride + size * (size_t)j, type)
                * x[r][j];
        }
    }
}

V_INLINE void direct_block(const uint8_t * w, size_t w_stride, const float * const * x, int64_t n,
    float out[DIRECT_OUTS][DIRECT_ROWS], int nx,
                           const enum uma_type type) {
    switch (nx) {
        case 1: direct_dots(w, w_stride, x, n, out, 1, type); break;
        case 2: direct_dots(w, w_stride, x, n, out, 2, type); break;
#if V_DIRECT_ROWS == 6
        case 4: direct_dots(w, w_stride, x, n, out, 4, type); break;
        case 5: direct_dots(w, w_stride, x, n, out, 5, type); break;
        case 6: direct_dots(w, w_stride, x, n, out, 6, type); break;
#endif
        default: direct_dots(w, w_stride, x, n, out, 3, type); break;
    }
}

static void direct_of_type(const uint8_t * w, size_t w_stride, const float * const * x, int64_t n,
    float out[DIRECT_OUTS][DIRECT_ROWS], int nx, enum uma_type type) {
    switch (type) {
        case UMA_F32: direct_block(w, w_stride, x, n, out, nx, UMA_F32); break;
        case UMA_BF16: direct_block(w, w_stride, x, n, out, nx, UMA_BF16); break;
        default: direct_block(w, w_stride, x, n, out, nx, UMA_F16); break;
    }
}

// Multiplies rows row..row+nx-1 by the weight rows of a run.
static void direct_run(const struct uma_mm * mm, int64_t row, int nx, int64_t out_begin, int64_t out_end) {
    const float * x[DIRECT_ROWS];
    for (int r = 0; r < DIRECT_ROWS; r++) x[r] = x_row(mm, row + (r < nx ? r : 0));
    for (int64_t o = out_begin; o < out_end; o += DIRECT_OUTS) {
        const int n = out_end - o < DIRECT_OUTS ? (int)(out_end - o) : DIRECT_OUTS;
        // the last few weight rows are computed one by one: with stride 0 the same row is read four times
        const size_t stride = n == DIRECT_OUTS ? mm->w_stride : 0;
        for (int i = 0; i < n; i += stride ? DIRECT_OUTS : 1) {
            float out[DIRECT_OUTS][DIRECT_ROWS];
            direct_of_type((const uint8_t *)mm->w + (size_t)(o + i) * mm->w_stride, stride, x, mm->n_in, out, nx,
                mm->type);
            for (int r = 0; r < nx; r++) {
                const int64_t to = mm->y_index ? mm->y_index[row + r] : row + r;
                float * y = (float *)(void *)((char *)mm->y + (size_t)to * mm->y_stride) + o + i;
                for (int j = 0; j < (stride ? DIRECT_OUTS : 1); j++) y[j] = out[j][r];
            }
        }
    }
}

static void direct_rows(const struct uma_mm * mm, int64_t out_begin, int64_t out_end) {
    for (int64_t o = out_begin; o < out_end; o += DIRECT_RUN) {
        const int64_t end = out_end - o < DIRECT_RUN ? out_end : o + DIRECT_RUN;
        for (int64_t row = 0; row < mm->n_rows; row += DIRECT_ROWS) {
            direct_run(mm, row, mm->n_rows - row < DIRECT_ROWS ? (int)(mm->n_rows - row) : DIRECT_ROWS, o, end);
        }
    }
}

#endif
