// sub_dots with smmla: one instruction multiplies 2 weight rows by 2 activation rows over 8 columns.
#ifndef UMA_MM_DOTS_I8MM_H
#define UMA_MM_DOTS_I8MM_H

V_INLINE void panel_dots(vi * dot, const uint8_t * w, const int8_t * q, const int sub, const int R) {
    int32x4_t low[V_TILE_ROWS / 2], high[V_TILE_ROWS / 2]; // weight rows 0, 1 and 2, 3 by a pair of activation rows
    V_UNROLL for (int i = 0; i < (R + 1) / 2; i++) low[i] = high[i] = vdupq_n_s32(0);
    V_UNROLL for (int g = 0; g < sub / 8; g++, w += V_LANES * 8, q += 8 * R) {
        const int32x4_t first = vi_load(w), second = vi_load(w + 16); // columns 0..3 and 4..7 of 4 weight rows
        const int8x16_t w01 = vreinterpretq_s8_s32(vzip1q_s32(first, second)),
            w23 = vreinterpretq_s8_s32(vzip2q_s32(first, second));
        V_UNROLL for (int i = 0; i < (R + 1) / 2; i++) {
            // an odd last row is paired with the bytes after it: they are always inside acts, and their result is
            // dropped
            const int8x16_t x = vld1q_s8(q + 16 * i);
            low[i] = vmmlaq_s32(low[i], w01, x);
            high[i] = vmmlaq_s32(high[i], w23, x);
        }
    }
    V_UNROLL for (int r = 0; r < R; r++) {
        dot[r] = vaddq_s32(dot[r], r % 2 ? vuzp2q_s32(low[r / 2], high[r / 2]) : vuzp1q_s32(low[r / 2], high[r / 2]));
    }
}

V_INLINE void sub_dots(vi dot[V_PANELS][V_TILE_ROWS], const struct panel * p, int64_t at, const int8_t * q,
    const int sub, const int R, const int NP, const enum kind kind) {
    (void)kind;
    V_UNROLL for (int i = 0; i < NP; i++) panel_dots(dot[i], p[i].q + at, q, sub, R);
}

#endif
