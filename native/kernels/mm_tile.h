// The inner products: one or two panels by one tile of activations, with the sums in registers.
#ifndef UMA_MM_TILE_H
#define UMA_MM_TILE_H

#include "mm_acts.h"
#include "mm_panel.h"

// How a type's products are summed: sub-blocks of 32 or 16 columns are summed in s32 and then scaled. S8 and U6 are
// bytes, arranged or unpacked (U4: all are below 16). N are arranged weights of this many bits that are multiplied in
// place; NT are weights of 4 bits that go through a table.
enum kind { KIND_S8, KIND_U6, KIND_U6_SUB16, KIND_U6_MIN, KIND_U4, KIND_U4_MIN, KIND_N4, KIND_N4_MIN, KIND_N5,
    KIND_N5_MIN, KIND_N6, KIND_NT, N_KINDS };

// The kind for unpacked weights.
static inline enum kind kind_of_bytes(enum uma_type type) {
    const struct uma_type_info info = uma_type_info(type);
    if (info.is_signed) return KIND_S8;
    if (info.bits == 4) return info.has_min ? KIND_U4_MIN : KIND_U4;
    return info.has_min ? KIND_U6_MIN : info.sub == 16 ? KIND_U6_SUB16 : KIND_U6;
}

// The kind for arranged weights in place.
static inline enum kind kind_in_place(enum uma_type type) {
    const struct uma_type_info info = uma_type_info(type);
    switch (info.bits) {
        case 4: return info.is_signed ? KIND_NT : info.has_min ? KIND_N4_MIN : KIND_N4;
        case 5: return info.has_min ? KIND_N5_MIN : KIND_N5;
        case 6: return KIND_N6;
        default: return KIND_S8;
    }
}

static inline bool is_in_place(const struct uma_mm * mm) {
    return multiplies_bits(mm) || (mm->is_arranged && uma_type_info(mm->type).bits == 8);
}

#ifdef V_HAS_DOT_AT
enum { V_DOTS_AT = 1 };
#else
enum { V_DOTS_AT = 0 };
static inline vi vi_dot_at(vi acc, vi w, const int8_t * x) { return (void)w, (void)x, acc; }
#endif

#ifdef V_HAS_PAIRS
// Without VNNI a product of bytes gives sums of pairs in s16. If weights are small, several groups fit before the sums
// have to be widened: 15 * 127 * 2 eight times, 31 * 127 * 2 four times, 63 * 127 * 2 twice.
V_INLINE int groups_in_pairs(const enum kind kind) {
    switch (kind) {
        case KIND_U4:
        case KIND_U4_MIN:
        case KIND_N4:
        case KIND_N4_MIN: return 8;
        case KIND_N5:
        case KIND_N5_MIN: return 4;
        case KIND_S8:
        case KIND_NT: return 0; // signed weights cannot be summed this way
        default: return 2;
    }
}
#else
V_INLINE int groups_in_pairs(const enum kind kind) { return (void)kind, 0; }
static inline vi vi_pairs_u6(vi acc, vi w, vi x) { return (void)w, (void)x, acc; }
static inline vi vi_widen_pairs(vi acc, vi pairs) { return (void)pairs, acc; }
#endif

static inline int bits_of(const enum kind kind) {
    switch (kind) {
        case KIND_N4:
        case KIND_N4_MIN:
        case KIND_NT: return 4;
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

#ifdef V_HAS_I8MM
#include "mm_dots_i8mm.h"
#else
// dot[panel][row] += the products of the R rows of a tile by `sub` columns of each panel, from byte `at` on.
V_INLINE void sub_dots(vi dot[V_PANELS][V_TILE_ROWS], struct panel * p, int64_t at, const int8_t * q,
    const int sub, const int R, const int NP,
                       const enum kind kind) {
    const int n_groups = groups_in_pairs(kind);
    if (n_groups) {
        V_UNROLL for (int first = 0; first < sub / 4; first += n_groups) {
            vi pairs[V_PANELS][V_TILE_ROWS];
            V_UNROLL for (int r = 0; r < R; r++) {
                V_UNROLL for (int i = 0; i < NP; i++) pairs[i][r] = vi_set1(0);
            }
            V_UNROLL for (int g = 0; g < n_groups; g++, at += V_LANES * 4, q += 4 * R) {
                V_UNROLL for (int i = 0; i < NP; i++) {
                    const vi w = vi_load(p[i].q + at);
                    V_UNROLL for (int r = 0; r < R; r++) pairs[i][r] = vi_pairs_u6(pairs[i][r], w, vi_bcast(q + 4 * r));
                }
            }
            V_UNROLL for (int r = 0; r < R; r++) {
                V_UNROLL for (int i = 0; i < NP; i++) dot[i][r] = vi_widen_pairs(dot[i][r], pairs[i][r]);
            }
        }
        return;
    }
    V_UNROLL for (int g = 0; g < sub / 4; g++, at += V_LANES * 4, q += 4 * R) {
        vi w[V_PANELS];
        V_UNROLL for (int i = 0; i < NP; i++) {
            w[i] = vi_load(p[i].q + at);
            fetch_next(p + i, kind, R);
        }
        V_UNROLL for (int r = 0; r < R; r++) {
            if (V_DOTS_AT && NP == 1) {
                dot[0][r] = vi_dot_at(dot[0][r], w[0], q + 4 * r);
                continue;
            }
            const vi x = vi_bcast(q + 4 * r);
            V_UNROLL for (int i = 0; i < NP; i++)
                dot[i][r] = kind == KIND_S8 ? vi_dot_s8(dot[i][r], w[i], x) : vi_dot_u6(dot[i][r], w[i], x);
        }
    }
}
#endif

// Multiplies group g of all rows of a tile by one vector of one panel. The products are added to dot, or to pairs if
// the kind is summed in pairs.
V_INLINE void group_dots(vi dot[V_TILE_ROWS], vi w, const int8_t * q, const int g, const int R, const enum kind kind) {
    V_UNROLL for (int r = 0; r < R; r++) {
        if (V_DOTS_AT) {
            dot[r] = vi_dot_at(dot[r], w, q + 4 * (g * R + r));
            continue;
        }
        const vi x = vi_bcast(q + 4 * (g * R + r));
        if (groups_in_pairs(kind)) dot[r] = vi_pairs_u6(dot[r], w, x);
        else dot[r] = kind == KIND_NT ? vi_dot_s8(dot[r], w, x) : vi_dot_u6(dot[r], w, x);
    }
}

V_INLINE void clear_rows(vi dot[V_TILE_ROWS], const int R) {
    V_UNROLL for (int r = 0; r < R; r++) dot[r] = vi_set1(0);
}

V_INLINE void widen_rows(vi dot[V_TILE_ROWS], const vi pairs[V_TILE_ROWS], const int R) {
    V_UNROLL for (int r = 0; r < R; r++) dot[r] = vi_widen_pairs(dot[r], pairs[r]);
}

// The same as sub_dots, for one panel of arranged weights of 4 to 6 bits.
V_INLINE void bit_dots(vi dot[V_TILE_ROWS], struct panel * p, const uint8_t * w, const int8_t * q, const int R,
    const enum kind kind) {
    const bool has_pairs = groups_in_pairs(kind) != 0;
    vi pairs[V_TILE_ROWS];
    vi * to = has_pairs ? pairs : dot;
    if (has_pairs) clear_rows(pairs, R);
    if (kind == KIND_N6) {
        vi v[4];
        six_bits(w, v);
        V_UNROLL for (int g = 0; g < 4; g++) {
            fetch_next(p, kind, R);
            group_dots(to, v[g], q, g, R, kind);
            if (!has_pairs || g % 2 == 0) continue;
            widen_rows(dot, pairs, R);
            clear_rows(pairs, R);
        }
        return;
    }
    struct fifth_bits fifth;
    if (kind == KIND_N5 || kind == KIND_N5_MIN) fifth = fifth_bits_at(w + 16 * V_LANES);
    V_UNROLL for (int k = 0; k < 4; k++) {
        vi low, high;
        nibbles(w + 4 * V_LANES * k, &low, &high);
        if (kind == KIND_N5 || kind == KIND_N5_MIN) add_fifth(&fifth, &low, &high);
        if (kind == KIND_NT) low = vi_lookup(p->table, low), high = vi_lookup(p->table, high);
        fetch_next(p, kind, R);
        group_dots(to, low, q, k, R, kind);
        group_dots(to, high, q, k + 4, R, kind);
        if (!has_pairs || 2 * (k + 1) % groups_in_pairs(kind)) continue;
        widen_rows(dot, pairs, R);
        clear_rows(pairs, R);
    }
}

// sum[panel][row] += the scaled products of the quantised columns from..from + n - 1. With by_256 the activations'
// scale is left out, because all these columns share it.
V_INLINE void quant_sums(vf sum[V_PANELS][V_TILE_ROWS], struct panel * p, const struct part * x, int64_t from,
    int64_t n, const int R, const int NP, const enum kind kind, const bool by_256) {
    const int sub = kind == KIND_U6_SUB16 || kind == KIND_N6 ? 16 : 32;
    const bool has_min = kind == KIND_U6_MIN || kind == KIND_U4_MIN || kind == KIND_N4_MIN || kind == KIND_N5_MIN,
        is_signed = kind == KIND_S8 || kind == KIND_NT;
    const int bits = bits_of(kind), run = bits * sub / 8 * V_LANES; // bytes of a sub-block of one panel
    const int8_t * q = x->q + from * R;
    const float * dc = x->dc + from / sub * 2 * R;
    for (int64_t s = from / sub; s < (from + n) / sub; s++, dc += 2 * R, q += sub * R) {
        vi dot[V_PANELS][V_TILE_ROWS];
        const bool fetches = (kind == KIND_S8 || bits < 8) && p->is_fetching;
        if (fetches) {
            V_UNROLL for (int i = 0; i < NP; i++) {
                if (is_spread(kind, R)) p[i].until = p[i].ahead + (uintptr_t)p[i].fetch;
                else if (V_FETCHES_SPARSELY && p[i].is_sparse) fetch_sparsely(p + i, p[i].fetch);
                else fetch_ahead(p + i, p[i].fetch);
            }
        }
        V_UNROLL for (int r = 0; r < R; r++) {
            const bool starts_at_0 = has_min || (is_signed && !V_S8_BIAS);
            const vi start = starts_at_0 ? vi_set1(0) : vi_bcast(dc + R + r);
            V_UNROLL for (int i = 0; i < NP; i++) dot[i][r] = start;
        }
        if (bits == 8) sub_dots(dot, p, s * run, q, sub, R, NP, kind);
        else bit_dots(dot[0], p, p->q + s * run, q, R, kind);
        if (fetches && is_spread(kind, R)) {
            V_UNROLL for (int i = 0; i < NP; i++) fetch_rest(p + i);
        }
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

// acc[row][V_PANELS * V_LANES] += the product of NP panels and R rows over n columns. With by_256 activations have one
// scale per 256 columns, so it is applied to the sum over these columns. (2 cores with AVX-512: with Q6_K a prompt is
// read 1.12 times as fast as with a scaling per sub-block.)
V_INLINE void tile_product(struct panel * p, const struct part * x, float * acc, int64_t n, const int R, const int NP,
    const enum kind kind, const bool by_256) {
    const int sub = kind == KIND_U6_SUB16 || kind == KIND_N6 ? 16 : 32;
    vf sum[V_PANELS][V_TILE_ROWS], part[V_PANELS][V_TILE_ROWS];
    V_UNROLL for (int r = 0; r < R; r++) {
        V_UNROLL for (int i = 0; i < NP; i++) sum[i][r] = vf_load(acc + (r * V_PANELS + i) * V_LANES);
    }
    if (!by_256) quant_sums(sum, p, x, 0, n, R, NP, kind, false);
    for (int64_t from = 0; by_256 && from < n; from += 256) {
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
        if (R <= (NP == 2 ? V_TILE_ROWS * 3 / 4 : V_TILE_ROWS)) tile_product(p, x, acc, n, R, NP, kind, by_256); \
        break;
V_INLINE void any_tile(struct panel * p, const struct part * x, float * acc, int64_t n, const int NP,
    const enum kind kind, const bool by_256) {
    switch (x->n_rows) {
        ROWS(1) ROWS(2) ROWS(3) ROWS(4)
#if V_TILE_ROWS == 8
        ROWS(5) ROWS(6) ROWS(7) ROWS(8)
#endif
    }
}
#undef ROWS

typedef void tile_fn(struct panel * p, const struct part * x, float * acc, int64_t n);

#define TILE(name, NP, kind, by_256)                                                      \
    static void name(struct panel * p, const struct part * x, float * acc, int64_t n) {   \
        any_tile(p, x, acc, n, NP, kind, by_256); }
TILE(one_s8, 1, KIND_S8, false)
TILE(one_u6, 1, KIND_U6, false)
TILE(one_u6_min, 1, KIND_U6_MIN, false)
TILE(one_u4, 1, KIND_U4, false)
TILE(one_u4_min, 1, KIND_U4_MIN, false)
TILE(one_s8_k, 1, KIND_S8, true)
TILE(one_u6_sub16_k, 1, KIND_U6_SUB16, true)
TILE(one_u6_min_k, 1, KIND_U6_MIN, true)
TILE(one_u4_min_k, 1, KIND_U4_MIN, true)
#ifndef V_HAS_I8MM
TILE(one_n4, 1, KIND_N4, false)
TILE(one_n4_min, 1, KIND_N4_MIN, false)
TILE(one_n5, 1, KIND_N5, false)
TILE(one_n5_min, 1, KIND_N5_MIN, false)
TILE(one_nt, 1, KIND_NT, false)
TILE(one_n4_min_k, 1, KIND_N4_MIN, true)
TILE(one_n5_min_k, 1, KIND_N5_MIN, true)
TILE(one_n6_k, 1, KIND_N6, true)
TILE(one_nt_k, 1, KIND_NT, true)
#endif
#if V_QUANT_PANELS == 2
TILE(two_s8, 2, KIND_S8, false)
TILE(two_u6, 2, KIND_U6, false)
TILE(two_u6_min, 2, KIND_U6_MIN, false)
TILE(two_u4, 2, KIND_U4, false)
TILE(two_u4_min, 2, KIND_U4_MIN, false)
TILE(two_s8_k, 2, KIND_S8, true)
TILE(two_u6_sub16_k, 2, KIND_U6_SUB16, true)
TILE(two_u6_min_k, 2, KIND_U6_MIN, true)
TILE(two_u4_min_k, 2, KIND_U4_MIN, true)
#endif
#undef TILE

// [panels - 1][activations have a scale per 256 columns][kind]; kinds that no type has are left out
static tile_fn * const TILES[V_PANELS][2][N_KINDS] = {
    {
        {
            [KIND_S8] = one_s8, [KIND_U6] = one_u6, [KIND_U6_MIN] = one_u6_min, [KIND_U4] = one_u4,
            [KIND_U4_MIN] = one_u4_min,
#ifndef V_HAS_I8MM
            [KIND_N4] = one_n4, [KIND_N4_MIN] = one_n4_min, [KIND_N5] = one_n5, [KIND_N5_MIN] = one_n5_min,
            [KIND_NT] = one_nt,
#endif
        },
        {
            [KIND_S8] = one_s8_k, [KIND_U6_SUB16] = one_u6_sub16_k, [KIND_U6_MIN] = one_u6_min_k,
            [KIND_U4_MIN] = one_u4_min_k,
#ifndef V_HAS_I8MM
            [KIND_N4_MIN] = one_n4_min_k, [KIND_N5_MIN] = one_n5_min_k, [KIND_N6] = one_n6_k, [KIND_NT] = one_nt_k,
#endif
        },
    },
#if V_QUANT_PANELS == 2 // otherwise two panels are never multiplied at once
    {
        {
            [KIND_S8] = two_s8, [KIND_U6] = two_u6, [KIND_U6_MIN] = two_u6_min, [KIND_U4] = two_u4,
            [KIND_U4_MIN] = two_u4_min,
        },
        {
            [KIND_S8] = two_s8_k, [KIND_U6_SUB16] = two_u6_sub16_k, [KIND_U6_MIN] = two_u6_min_k,
            [KIND_U4_MIN] = two_u4_min_k,
        },
    },
#endif
};

#endif
