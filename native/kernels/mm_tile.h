// The inner products: one or two panels by one tile of activations, with the sums in registers.
#ifndef UMA_MM_TILE_H
#define UMA_MM_TILE_H

#include "mm_acts.h"
#include "mm_panel.h"

// How a type's products are summed: sub-blocks of 32 or 16 columns are summed in s32 and then scaled. S8 and U6 are
// bytes, repacked or unpacked (U4: all are below 16). N are repacked weights of this many bits that are multiplied in
// place; NT are weights of 4 bits that go through a table, to signed bytes or to values below 32.
enum kind { KIND_S8, KIND_U6, KIND_U6_SUB16, KIND_U6_MIN, KIND_U4, KIND_U4_MIN, KIND_N4, KIND_N4_MIN, KIND_N5,
    KIND_N5_MIN, KIND_N6, KIND_NT_S8, KIND_NT_U5, N_KINDS };

// The kind for unpacked weights.
static inline enum kind kind_of_bytes(enum uma_type type) {
    const struct uma_type_info info = uma_type_info(type);
    if (info.is_signed) return KIND_S8;
    if (info.bits == 4 && !uma_has_table(type)) return info.has_min ? KIND_U4_MIN : KIND_U4;
    return info.has_min ? KIND_U6_MIN : info.sub == 16 ? KIND_U6_SUB16 : KIND_U6;
}

// The kind for repacked weights in place.
static inline enum kind kind_in_place(enum uma_type type) {
    const struct uma_type_info info = uma_type_info(type);
    if (uma_has_table(type)) return info.is_signed ? KIND_NT_S8 : KIND_NT_U5;
    switch (info.bits) {
        case 4: return info.has_min ? KIND_N4_MIN : KIND_N4;
        case 5: return info.has_min ? KIND_N5_MIN : KIND_N5;
        case 6: return KIND_N6;
        default: return KIND_S8;
    }
}

static inline bool is_in_place(const struct uma_mm * mm) {
    return multiplies_bits(mm) || (mm->is_repacked && uma_type_info(mm->type).bits == 8);
}

#ifdef V_HAS_DOT_AT
enum { V_DOTS_AT = 1 };
#else
enum { V_DOTS_AT = 0 };
static inline vi vi_dot_at(vi acc, vi w, const int8_t * x) { return (void)w, (void)x, acc; }
#endif

static inline int bits_of(const enum kind kind) {
    switch (kind) {
        case KIND_N4:
        case KIND_N4_MIN:
        case KIND_NT_S8:
        case KIND_NT_U5: return 4;
        case KIND_N5:
        case KIND_N5_MIN: return 5;
        case KIND_N6: return 6;
        default: return 8;
    }
}

// Whether lines are prefetched one at a time between products. If all lines of a sub-block are requested at once,
// nothing is computed meanwhile. One or two rows of bytes request them at once, because they compute next to nothing.
// (2 cores, AVX-512 VNNI: a step of 1, 2, 4 and 8 rows of the 1B Q4_K_M takes 0.94, 0.91, 0.91 and 0.95 of the time
// with lines one at a time; a step of the 0.5B Q8_0 takes 1.05 with one row, 0.98 with four and 0.96 with eight.) AVX2
// requests them at once too: its panels are half as wide, so each vector of weights would take the same branch for half
// of the products. (2 cores of a Zen 3, weights in memory: products of 1, 4, 8 and 16 rows would take 1.02, 1.02, 1.00
// and 1.00 of the time by Q4_K, 1.11, 0.99, 1.12 and 1.15 by Q6_K, and 0.98, 0.99, 1.03 and 1.08 by Q8_0.)
#if defined(V_HAS_I8MM) || defined(V_FETCHES_AT_ONCE)
V_INLINE bool is_spread(const enum kind kind, const int R) { return (void)kind, (void)R, false; }
#else
V_INLINE bool is_spread(const enum kind kind, const int R) { return kind == KIND_S8 ? R > 2 : bits_of(kind) < 8; }
#endif

V_INLINE void fetch_next(struct panel * p, const enum kind kind, const int R) {
    if (!is_spread(kind, R) || p->ahead >= p->until) return;
    fetch_line(p, p->ahead);
    p->ahead += 64;
}

V_INLINE void start_fetching_sub(struct panel * p, const int R, const int NP, const enum kind kind) {
    V_UNROLL for (int i = 0; i < NP; i++) {
        if (is_spread(kind, R)) p[i].until = p[i].ahead + (uintptr_t)p[i].fetch;
        else if (V_FETCHES_SPARSELY && p[i].is_sparse) fetch_sparsely(p + i, p[i].fetch);
        else fetch_ahead(p + i, p[i].fetch);
    }
}

V_INLINE void end_fetching_sub(struct panel * p, const int R, const int NP, const enum kind kind) {
    if (!is_spread(kind, R)) return;
    V_UNROLL for (int i = 0; i < NP; i++) fetch_rest(p + i);
}

V_INLINE bool has_minimum(const enum kind kind) {
    return kind == KIND_U6_MIN || kind == KIND_U4_MIN || kind == KIND_N4_MIN || kind == KIND_N5_MIN;
}

#if defined(V_HAS_PAIRS)
#include "mm_dots_pairs.h"
#elif defined(V_HAS_I8MM)
#include "mm_dots_i8mm.h"
#else
#include "mm_dots.h"
#endif

// sum[panel][row] += the scaled products of the quantised columns from..from + n - 1. With by_256 the activations'
// scale is left out, because all these columns share it.
V_INLINE void quant_sums(vf sum[V_PANELS][V_TILE_ROWS], struct panel * p, const struct part * x, int64_t from,
    int64_t n, const int R, const int NP, const enum kind kind, const bool by_256) {
    const int sub = kind == KIND_U6_SUB16 || kind == KIND_N6 ? 16 : 32;
    const bool has_min = has_minimum(kind), is_signed = kind == KIND_S8 || kind == KIND_NT_S8;
    const int bits = bits_of(kind), run = bits * sub / 8 * V_LANES; // bytes of a sub-block of one panel
    const int8_t * q = x->q + from * R;
    const float * dc = x->dc + from / sub * 2 * R;
    for (int64_t s = from / sub; s < (from + n) / sub; s++, dc += 2 * R, q += sub * R) {
        vi dot[V_PANELS][V_TILE_ROWS];
        const bool fetches = (kind == KIND_S8 || bits < 8) && p->is_fetching;
        if (fetches) start_fetching_sub(p, R, NP, kind);
        V_UNROLL for (int r = 0; r < R; r++) {
            const bool starts_at_0 = has_min || (is_signed && !V_S8_BIAS);
            const vi start = starts_at_0 ? vi_set1(0) : vi_bcast(dc + R + r);
            V_UNROLL for (int i = 0; i < NP; i++) dot[i][r] = start;
        }
        sub_dots(dot, p, s * run, q, sub, R, NP, kind);
        if (fetches) end_fetching_sub(p, R, NP, kind);
        V_UNROLL for (int i = 0; i < NP; i++) {
            const vf scale = vf_load(p[i].scale + s * V_LANES);
            V_UNROLL for (int r = 0; r < R; r++) {
                const vf product = vf_from_vi(dot[i][r]);
                sum[i][r] = by_256 ? vf_fma(product, scale, sum[i][r])
                                   : vf_fma(vf_mul(product, scale), vf_bcast(dc + r), sum[i][r]);
            }
            if (!has_min) continue;
            const vf min = vf_load(p[i].min + s * V_LANES);
            V_UNROLL for (int r = 0; r < R; r++) sum[i][r] = vf_fnma(min, vf_bcast(dc + R + r), sum[i][r]);
        }
    }
}

// acc[row][V_PANELS * V_LANES] += the product of NP panels and R rows over n columns. If activations have one scale per
// 256 columns, it is applied to the sum over these columns. (2 cores with AVX-512: with Q6_K a prompt is
// read 1.12 times as fast as with a scaling per sub-block.)
V_INLINE void tile_product(struct panel * p, const struct part * x, float * acc, int64_t n, const int R, const int NP,
    const enum kind kind, const enum scaling by) {
    const int sub = kind == KIND_U6_SUB16 || kind == KIND_N6 ? 16 : 32;
    vf sum[V_PANELS][V_TILE_ROWS], part[V_PANELS][V_TILE_ROWS];
    V_UNROLL for (int r = 0; r < R; r++) {
        V_UNROLL for (int i = 0; i < NP; i++) sum[i][r] = vf_load(acc + (r * V_PANELS + i) * V_LANES);
    }
    if (by == BY_32) quant_sums(sum, p, x, 0, n, R, NP, kind, false);
    for (int64_t from = 0; by != BY_32 && from < n; from += 256) {
#ifdef V_HAS_PAIRS
        if (by == BY_BLOCK) {
            block_sums(sum, p, x, from, R, NP, kind);
            continue;
        }
#endif
        V_UNROLL for (int r = 0; r < R; r++) {
            V_UNROLL for (int i = 0; i < NP; i++) part[i][r] = vf_set1(0);
        }
        quant_sums(part, p, x, from, 256, R, NP, kind, true);
        const float * d = x->dc + from / sub * 2 * R;
        V_UNROLL for (int r = 0; r < R; r++) {
            V_UNROLL for (int i = 0; i < NP; i++) sum[i][r] = vf_fma(part[i][r], vf_bcast(d + r), sum[i][r]);
        }
    }
    V_UNROLL for (int r = 0; r < R; r++) {
        V_UNROLL for (int i = 0; i < NP; i++) vf_store(acc + (r * V_PANELS + i) * V_LANES, sum[i][r]);
    }
}

// Tile heights never exceed most_tile_rows: the cases beyond it would not fit the registers and are left out.
#define ROWS(R)                                                                                                \
    case R:                                                                                                    \
        if (R <= (NP == 2 ? V_ROWS_BY_TWO : V_TILE_ROWS)) tile_product(p, x, acc, n, R, NP, kind, by);     \
        break;
V_INLINE void any_tile(struct panel * p, const struct part * x, float * acc, int64_t n, const int NP,
    const enum kind kind, const enum scaling by) {
    switch (x->n_rows) {
        ROWS(1) ROWS(2) ROWS(3) ROWS(4)
#if V_TILE_ROWS == 8
        ROWS(5) ROWS(6) ROWS(7) ROWS(8)
#endif
    }
}
#undef ROWS

typedef void tile_fn(struct panel * p, const struct part * x, float * acc, int64_t n);

// The tiles that a type needs: F(panels, kind, scaling). Kinds with bits (N, NT) are repacked weights in place.
#define BYTES_BY_32(F, NP) F(NP, S8, BY_32) F(NP, U6, BY_32) F(NP, U6_MIN, BY_32) F(NP, U4, BY_32) F(NP, U4_MIN, BY_32)
#define PLAIN_BY_256(F, NP) F(NP, U6_SUB16, BY_256) F(NP, U4_MIN, BY_256)
#define FOUR_BITS_BY_32(F, NP) F(NP, N4, BY_32) F(NP, N4_MIN, BY_32) F(NP, NT_S8, BY_32) F(NP, NT_U5, BY_32)
#ifdef V_HAS_PAIRS
#define OTHERS_BY_256(F, NP) // repacked weights are summed by block
#define BITS_BY_256(F) F(1, N4_MIN, BY_BLOCK) F(1, N5_MIN, BY_BLOCK) F(1, N6, BY_BLOCK) F(1, NT_S8, BY_BLOCK) \
    F(1, S8, BY_BLOCK) F(1, U6_SUB16, BY_BLOCK) F(1, U6_MIN, BY_BLOCK) F(1, U4_MIN, BY_BLOCK)
#define FOUR_BITS_BY_256(F) F(2, N4_MIN, BY_BLOCK) F(2, NT_S8, BY_BLOCK)
#else
#define OTHERS_BY_256(F, NP) F(NP, S8, BY_256) F(NP, U6_MIN, BY_256)
#define BITS_BY_256(F) F(1, N4_MIN, BY_256) F(1, N5_MIN, BY_256) F(1, N6, BY_256) F(1, NT_S8, BY_256)
#define FOUR_BITS_BY_256(F) F(2, N4_MIN, BY_256) F(2, NT_S8, BY_256)
#endif
#ifdef V_HAS_I8MM // it multiplies bytes only
#define TILES_IN_PLACE(F)
#else
#define TILES_IN_PLACE(F) FOUR_BITS_BY_32(F, 1) F(1, N5, BY_32) F(1, N5_MIN, BY_32) BITS_BY_256(F)
#endif
#define TILES_OF_ONE(F) BYTES_BY_32(F, 1) PLAIN_BY_256(F, 1) OTHERS_BY_256(F, 1) TILES_IN_PLACE(F)
#if V_FEW_PANELS == 2
#define TILES_OF_TWO(F) BYTES_BY_32(F, 2) PLAIN_BY_256(F, 2) OTHERS_BY_256(F, 2) FOUR_BITS_BY_32(F, 2) \
    FOUR_BITS_BY_256(F)
#elif V_QUANT_PANELS == 2
#define TILES_OF_TWO(F) BYTES_BY_32(F, 2) PLAIN_BY_256(F, 2) OTHERS_BY_256(F, 2)
#else
#define TILES_OF_TWO(F)
#endif

#define DEFINE(NP, kind, by)                                                                                     \
    static void tile_##NP##_##kind##_##by(struct panel * p, const struct part * x, float * acc, int64_t n) {     \
        any_tile(p, x, acc, n, NP, KIND_##kind, by); }
TILES_OF_ONE(DEFINE)
TILES_OF_TWO(DEFINE)
#undef DEFINE

#define ENTRY(NP, kind, by) [by][KIND_##kind] = tile_##NP##_##kind##_##by,
static tile_fn * const TILES[V_PANELS][N_SCALINGS][N_KINDS] = { { TILES_OF_ONE(ENTRY) }, { TILES_OF_TWO(ENTRY) } };
#undef ENTRY

#endif
