// Up to DIRECT_ROWS rows by f16 or bf16 weights: dot products along the weight rows. Unpacking into panels would cost more than it saves.
#ifndef UMA_MM_DIRECT_H
#define UMA_MM_DIRECT_H

#include "mm_acts.h"

enum { DIRECT_OUTS = 4 }; // weight rows at once

// out[i][r] of 4 weight rows and NX rows over n columns. Fetches the next 4 weight rows, which are one run of bytes.
V_INLINE void direct_dots(const uint8_t * w, size_t w_stride, const float * const * x, int64_t n, float out[DIRECT_OUTS][DIRECT_ROWS], const int NX,
                          const bool IS_BF16) {
    vf sum[DIRECT_OUTS][DIRECT_ROWS];
    uintptr_t ahead = (uintptr_t)w + DIRECT_OUTS * w_stride;
    for (int i = 0; i < DIRECT_OUTS * DIRECT_ROWS; i++) sum[i / DIRECT_ROWS][i % DIRECT_ROWS] = vf_set1(0);
    int64_t c = 0;
    for (; c + V_LANES <= n; c += V_LANES) {
        for (int b = 0; b < V_LANES * 2 * DIRECT_OUTS; b += 64, ahead += 64) __builtin_prefetch((const void *)ahead, 0, 2);
        V_UNROLL for (int i = 0; i < DIRECT_OUTS; i++) {
            const uint8_t * at = w + (size_t)i * w_stride + 2 * (size_t)c;
            const vf a = IS_BF16 ? vf_load_bf16(at) : vf_load_f16(at);
            V_UNROLL for (int r = 0; r < NX; r++) sum[i][r] = vf_fma(a, vf_load(x[r] + c), sum[i][r]);
        }
    }
    for (int i = 0; i < DIRECT_OUTS; i++) {
        for (int r = 0; r < NX; r++) {
            out[i][r] = vf_sum(sum[i][r]);
            for (int64_t j = c; j < n; j++) {
                const uint16_t bits = uma_u16(w + (size_t)i * w_stride + 2 * (size_t)j);
                out[i][r] += (IS_BF16 ? uma_bf16_to_f32(bits) : uma_f16_to_f32(bits)) * x[r][j];
            }
        }
    }
}

V_INLINE void direct_block(const uint8_t * w, size_t w_stride, const float * const * x, int64_t n, float out[DIRECT_OUTS][DIRECT_ROWS], int nx,
                           const bool IS_BF16) {
    switch (nx) {
        case 1: direct_dots(w, w_stride, x, n, out, 1, IS_BF16); break;
        case 2: direct_dots(w, w_stride, x, n, out, 2, IS_BF16); break;
        default: direct_dots(w, w_stride, x, n, out, 3, IS_BF16); break;
    }
}

static void direct_rows(const struct uma_mm * mm, int64_t out_begin, int64_t out_end) {
    const int nx = (int)mm->n_rows;
    const float * x[DIRECT_ROWS] = { x_row(mm, 0), x_row(mm, nx > 1 ? 1 : 0), x_row(mm, nx - 1) };
    for (int64_t o = out_begin; o < out_end; o += DIRECT_OUTS) {
        const int n = out_end - o < DIRECT_OUTS ? (int)(out_end - o) : DIRECT_OUTS;
        const uint8_t * w = (const uint8_t *)mm->w + (size_t)o * mm->w_stride;
        const size_t stride = n == DIRECT_OUTS ? mm->w_stride : 0; // the last few rows one by one, as four times the same
        for (int i = 0; i < n; i += stride ? DIRECT_OUTS : 1) {
            float out[DIRECT_OUTS][DIRECT_ROWS];
            const uint8_t * at = w + (size_t)i * mm->w_stride;
            if (mm->type == UMA_BF16) direct_block(at, stride, x, mm->n_in, out, nx, true);
            else direct_block(at, stride, x, mm->n_in, out, nx, false);
            for (int r = 0; r < nx; r++) {
                float * y = (float *)(void *)((char *)mm->y + (size_t)(mm->y_index ? mm->y_index[r] : r) * mm->y_stride) + o + i;
                for (int j = 0; j < (stride ? DIRECT_OUTS : 1); j++) y[j] = out[j][r];
            }
        }
    }
}

#endif
