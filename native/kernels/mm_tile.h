// The inner products: one or two unpacked panels by one tile of activations, sums in registers.
#ifndef UMA_MM_TILE_H
#define UMA_MM_TILE_H

#include "mm_acts.h"
#include "mm_panel.h"

// How a type's products are summed: sub-blocks of 32 or 16 columns in s32 and then scaled, or f32 throughout.
enum kind { KIND_S8, KIND_U6, KIND_U6_SUB16, KIND_U6_MIN, KIND_F32 };

static inline enum kind kind_of(enum uma_type type) {
    switch (type) {
        case UMA_Q8_0: return KIND_S8;
        case UMA_Q4_0: return KIND_U6;
        case UMA_Q4_K: return KIND_U6_MIN;
        case UMA_Q6_K: return KIND_U6_SUB16;
        default: return KIND_F32;
    }
}

#ifdef V_HAS_I8MM
#include "mm_dots_i8mm.h"
#else
// dot[panel][row] += the products over `sub` columns, from byte `at` of each panel, and of a tile of R rows.
V_INLINE void sub_dots(vi dot[V_PANELS][V_TILE_ROWS], const struct panel * p, int64_t at, const int8_t * q, const int sub, const int R, const int NP,
                       const enum kind kind) {
    V_UNROLL for (int g = 0; g < sub / 4; g++, at += V_LANES * 4, q += 4 * R) {
        vi w[V_PANELS];
        V_UNROLL for (int i = 0; i < NP; i++) w[i] = vi_load(p[i].q + at);
        V_UNROLL for (int r = 0; r < R; r++) {
            const vi x = vi_bcast(q + 4 * r);
            V_UNROLL for (int i = 0; i < NP; i++) dot[i][r] = kind == KIND_S8 ? vi_dot_s8(dot[i][r], w[i], x) : vi_dot_u6(dot[i][r], w[i], x);
        }
    }
}
#endif

// sum[panel][row] += the scaled products of n quantised columns.
V_INLINE void quant_sums(vf sum[V_PANELS][V_TILE_ROWS], struct panel * p, const struct part * x, int64_t n, const int R, const int NP,
                         const enum kind kind) {
    const int sub = kind == KIND_U6_SUB16 ? 16 : 32;
    const int8_t * q = x->q;
    const float * dc = x->dc;
    for (int64_t s = 0; s < n / sub; s++, dc += 2 * R, q += sub * R) {
        vi dot[V_PANELS][V_TILE_ROWS];
        if (kind == KIND_S8 && p->is_fetching) {
            V_UNROLL for (int i = 0; i < NP; i++) fetch_ahead(p + i, V_LANES * Q8_0_BYTES);
        }
        V_UNROLL for (int r = 0; r < R; r++) {
            const bool starts_at_0 = kind == KIND_U6_MIN || (kind == KIND_S8 && !V_S8_BIAS);
            const vi start = starts_at_0 ? vi_set1(0) : vi_bcast(dc + R + r);
            V_UNROLL for (int i = 0; i < NP; i++) dot[i][r] = start;
        }
        sub_dots(dot, p, s * sub * V_LANES, q, sub, R, NP, kind);
        V_UNROLL for (int i = 0; i < NP; i++) {
            const vf scale = vf_load(p[i].scale + s * V_LANES);
            V_UNROLL for (int r = 0; r < R; r++) sum[i][r] = vf_fma(vf_mul(vf_from_vi(dot[i][r]), scale), vf_bcast(dc + r), sum[i][r]);
            if (kind != KIND_U6_MIN) continue;
            const vf min = vf_load(p[i].min + s * V_LANES);
            V_UNROLL for (int r = 0; r < R; r++) sum[i][r] = vf_fnma(min, vf_bcast(dc + R + r), sum[i][r]);
        }
    }
}

// sum[panel][row] += the products of n f32 columns.
V_INLINE void float_sums(vf sum[V_PANELS][V_TILE_ROWS], const struct panel * p, const float * x, int64_t n, const int R, const int NP) {
    for (int64_t k = 0; k < n; k++, x += R) {
        vf w[V_PANELS];
        V_UNROLL for (int i = 0; i < NP; i++) w[i] = vf_load((const float *)(const void *)p[i].q + k * V_LANES);
        V_UNROLL for (int r = 0; r < R; r++) {
            const vf xr = vf_bcast(x + r);
            V_UNROLL for (int i = 0; i < NP; i++) sum[i][r] = vf_fma(w[i], xr, sum[i][r]);
        }
    }
}

// acc[row][V_PANELS * V_LANES] += the product of NP panels and R rows over n columns.
V_INLINE void tile_product(struct panel * p, const struct part * x, float * acc, int64_t n, const int R, const int NP, const enum kind kind) {
    vf sum[V_PANELS][V_TILE_ROWS];
    V_UNROLL for (int r = 0; r < R; r++) {
        V_UNROLL for (int i = 0; i < NP; i++) sum[i][r] = vf_load(acc + (r * V_PANELS + i) * V_LANES);
    }
    if (kind == KIND_F32) float_sums(sum, p, (const float *)(const void *)x->q, n, R, NP);
    else quant_sums(sum, p, x, n, R, NP, kind);
    V_UNROLL for (int r = 0; r < R; r++) {
        V_UNROLL for (int i = 0; i < NP; i++) vf_store(acc + (r * V_PANELS + i) * V_LANES, sum[i][r]);
    }
}

// Tile heights never exceed most_tile_rows: the cases beyond it would not fit the registers and are left out.
#define ROWS(R)                                                                                                             \
    case R:                                                                                                                 \
        if (R <= (kind != KIND_F32 && NP == 2 ? V_TILE_ROWS * 3 / 4 : V_TILE_ROWS)) tile_product(p, x, acc, n, R, NP, kind); \
        break;
V_INLINE void any_tile(struct panel * p, const struct part * x, float * acc, int64_t n, const int NP, const enum kind kind) {
    switch (x->n_rows) {
        ROWS(1) ROWS(2) ROWS(3) ROWS(4)
#if V_TILE_ROWS == 8
        ROWS(5) ROWS(6) ROWS(7) ROWS(8)
#endif
    }
}
#undef ROWS

typedef void tile_fn(struct panel * p, const struct part * x, float * acc, int64_t n);

#define TILE(name, NP, kind)                                                                                 \
    static void name(struct panel * p, const struct part * x, float * acc, int64_t n) { any_tile(p, x, acc, n, NP, kind); }
TILE(one_s8, 1, KIND_S8)
TILE(one_u6, 1, KIND_U6)
TILE(one_u6_sub16, 1, KIND_U6_SUB16)
TILE(one_u6_min, 1, KIND_U6_MIN)
TILE(one_f32, 1, KIND_F32)
TILE(two_f32, 2, KIND_F32)
#if V_QUANT_PANELS == 2
TILE(two_s8, 2, KIND_S8)
TILE(two_u6, 2, KIND_U6)
TILE(two_u6_sub16, 2, KIND_U6_SUB16)
TILE(two_u6_min, 2, KIND_U6_MIN)
#endif
#undef TILE

// [panels - 1][kind]
static tile_fn * const TILES[V_PANELS][5] = {
    { one_s8, one_u6, one_u6_sub16, one_u6_min, one_f32 },
#if V_QUANT_PANELS == 2
    { two_s8, two_u6, two_u6_sub16, two_u6_min, two_f32 },
#else
    { NULL, NULL, NULL, NULL, two_f32 },
#endif
};

#endif
