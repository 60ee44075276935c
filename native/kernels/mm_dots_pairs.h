// The inner products of instruction sets whose product of bytes gives the sums of pairs in s16: those without VNNI.
// Another product widens these to s32, and multiplies by a scale meanwhile.
#ifndef UMA_MM_DOTS_PAIRS_H
#define UMA_MM_DOTS_PAIRS_H

// If weights are small, the pairs of several groups fit into s16 before their sums have to be widened: 15 * 127 * 2
// eight times, 31 * 127 * 2 four times, 63 * 127 * 2 twice.
V_INLINE int groups_in_pairs(const enum kind kind) {
    switch (kind) {
        case KIND_U4:
        case KIND_U4_MIN:
        case KIND_N4:
        case KIND_N4_MIN: return 8;
        case KIND_N5:
        case KIND_N5_MIN:
        case KIND_NT_U5: return 4;
        case KIND_S8:
        case KIND_NT_S8: return 0; // signed weights cannot be summed this way
        default: return 2;
    }
}

// The scales at byte `at` of a panel's scales, each in both s16 of its lane; 1 if `at` is negative.
V_INLINE vi scale_at(const struct panel * p, int64_t at) {
    return at < 0 ? vi_set1(0x00010001) : vi_load_s8_twice(p->scales + at);
}

V_INLINE void clear_rows(vi dot[V_PANELS][V_TILE_ROWS], const int R, const int NP) {
    V_UNROLL for (int r = 0; r < R; r++) {
        V_UNROLL for (int i = 0; i < NP; i++) dot[i][r] = vi_set1(0);
    }
}

// dot += the pairs' sums times the scales, and the pairs start again.
V_INLINE void widen_rows(vi dot[V_PANELS][V_TILE_ROWS], vi pairs[V_PANELS][V_TILE_ROWS], const int64_t scale,
    const struct panel * p, const int R, const int NP) {
    V_UNROLL for (int r = 0; r < R; r++) {
        V_UNROLL for (int i = 0; i < NP; i++) dot[i][r] = vi_dot_s16(dot[i][r], pairs[i][r], scale_at(p + i, scale));
    }
    clear_rows(pairs, R, NP);
}

// Multiplies the R rows at q by one vector of each panel. The products are added to `to`: pairs, or dot if the kind has
// none.
V_INLINE void group_dots(vi to[V_PANELS][V_TILE_ROWS], const vi w[V_PANELS], const int64_t scale,
    const struct panel * p, const int8_t * q, const int R, const int NP, const enum kind kind) {
    V_UNROLL for (int r = 0; r < R; r++) {
        const vi x = vi_bcast(q + 4 * r);
        V_UNROLL for (int i = 0; i < NP; i++) {
            if (groups_in_pairs(kind)) to[i][r] = vi_pairs_u6(to[i][r], w[i], x);
            else to[i][r] = vi_dot_s16(to[i][r], vi_pairs_s8(w[i], x), scale_at(p + i, scale));
        }
    }
}

// dot += the products of `sub` columns of bytes.
V_INLINE void byte_dots(vi dot[V_PANELS][V_TILE_ROWS], const int64_t scale, struct panel * p, int64_t at,
    const int8_t * q, const int sub, const int R, const int NP, const enum kind kind) {
    const int n_groups = groups_in_pairs(kind);
    vi pairs[V_PANELS][V_TILE_ROWS];
    clear_rows(pairs, R, NP);
    V_UNROLL for (int g = 0; g < sub / 4; g++, at += V_LANES * 4, q += 4 * R) {
        vi w[V_PANELS];
        V_UNROLL for (int i = 0; i < NP; i++) {
            w[i] = vi_load(p[i].q + at);
            fetch_next(p + i, kind, R);
        }
        group_dots(n_groups ? pairs : dot, w, scale, p, q, R, NP, kind);
        if (n_groups && (g + 1) % n_groups == 0) widen_rows(dot, pairs, scale, p, R, NP);
    }
}

// dot += the products of two groups by one panel, whose pairs are summed and widened at once.
V_INLINE void two_groups(vi dot[V_TILE_ROWS], const vi w[2], vi scale, const int8_t * q, const int R) {
    V_UNROLL for (int r = 0; r < R; r++) {
        const vi pairs = vi_pairs_u6(vi_set1(0), w[0], vi_bcast(q + 4 * r));
        dot[r] = vi_dot_s16(dot[r], vi_pairs_u6(pairs, w[1], vi_bcast(q + 4 * (R + r))), scale);
    }
}

// dot += the products of 16 columns of repacked weights of 6 bits in place, of one panel.
V_INLINE void six_bit_dots(vi dot[V_TILE_ROWS], const int64_t scale, const struct panel * p, int64_t at,
    const int8_t * q, const int R) {
    vi v[4];
    six_bits(p->q + at, v);
    two_groups(dot, v, scale_at(p, scale), q, R);
    two_groups(dot, v + 2, scale_at(p, scale), q + 8 * R, R);
}

// dot += the products of 32 columns of repacked weights of 4 or 5 bits in place; with 5 bits, of one panel.
V_INLINE void bit_dots(vi dot[V_PANELS][V_TILE_ROWS], const int64_t scale, struct panel * p, int64_t at,
    const int8_t * q, const int R, const int NP, const enum kind kind) {
    const bool has_fifth = bits_of(kind) == 5, has_table = kind == KIND_NT_S8 || kind == KIND_NT_U5;
    const int n_groups = groups_in_pairs(kind);
    struct fifth_bits fifth;
    vi pairs[V_PANELS][V_TILE_ROWS];
    clear_rows(pairs, R, NP);
    if (has_fifth) fifth = fifth_bits_at(p->q + at + 16 * V_LANES);
    V_UNROLL for (int k = 0; k < 4; k++) {
        vi low[V_PANELS], high[V_PANELS];
        V_UNROLL for (int i = 0; i < NP; i++) {
            nibbles(p[i].q + at + 4 * V_LANES * k, low + i, high + i);
            if (has_fifth) add_fifth(&fifth, low, high);
            if (has_table) low[i] = vi_lookup(p[i].table, low[i]), high[i] = vi_lookup(p[i].table, high[i]);
            fetch_next(p + i, kind, R);
        }
        group_dots(n_groups ? pairs : dot, low, scale, p, q + 4 * R * k, R, NP, kind);
        group_dots(n_groups ? pairs : dot, high, scale, p, q + 4 * R * (k + 4), R, NP, kind);
        if (n_groups && 2 * (k + 1) % n_groups == 0) widen_rows(dot, pairs, scale, p, R, NP);
    }
}

// dot[panel][row] += the products of the R rows of a tile by `sub` columns of each panel, from byte `at` on, times the
// panel's scales at `scale`; see scale_at.
V_INLINE void scaled_dots(vi dot[V_PANELS][V_TILE_ROWS], const int64_t scale, struct panel * p, int64_t at,
    const int8_t * q, const int sub, const int R, const int NP, const enum kind kind) {
    if (bits_of(kind) == 8) byte_dots(dot, scale, p, at, q, sub, R, NP, kind);
    else if (kind == KIND_N6) six_bit_dots(dot[0], scale, p, at, q, R);
    else bit_dots(dot, scale, p, at, q, R, NP, kind);
}

V_INLINE void sub_dots(vi dot[V_PANELS][V_TILE_ROWS], struct panel * p, int64_t at, const int8_t * q, const int sub,
    const int R, const int NP, const enum kind kind) {
    scaled_dots(dot, -1, p, at, q, sub, R, NP, kind);
}

// sum[panel][row] += the products of the 256 columns from `from` on, of repacked weights. The sub-blocks' scales are
// integers, and the sums of pairs have to be widened by a multiplication anyway: here it is by the scale.
// So a sub-block takes no conversion to f32, and its scales need not be converted before. (Zen 3, weights of 2,048
// columns, measured alternately with sums in f32, one panel and two prefetches. With the weights in a cache, one core:
// 1, 2, 4, 8, 16 and 32 rows by Q4_K take 0.75, 0.70, 0.77, 0.92, 0.88 and 0.88 of the time, by Q5_K 0.89, 0.88, 0.86,
// 0.88, 0.92 and 0.91, by Q6_K 0.93, 0.92, 0.89, 0.86, 0.88 and 0.88, by IQ4_XS 0.89, 0.92, 0.90, 0.88, 0.95 and 0.93.
// With 200 MiB of weights in memory, on both cores at once, 1, 2, 4, 8 and 16 rows by Q4_K take 0.81, 0.87, 0.82, 0.97
// and 0.99, by Q6_K 1.03, 1.00, 0.93, 0.94 and 0.94.)
V_INLINE void block_sums(vf sum[V_PANELS][V_TILE_ROWS], struct panel * p, const struct part * x, int64_t from,
    const int R, const int NP, const enum kind kind) {
    const bool has_min = has_minimum(kind), has_offset = kind == KIND_N6 || kind == KIND_U6_SUB16;
    const int sub = has_offset ? 16 : 32, n_sub = 256 / sub, run = bits_of(kind) * sub / 8 * V_LANES,
        n_halves = has_min ? 2 : 1, n_bytes = has_min ? 2 * n_sub : n_sub, n_rest = has_min || has_offset ? n_sub : 0;
    const int8_t * q = x->q + from * R;
    const float * dc = x->dc + from / sub * 2 * R;
    const int64_t at = from / 256 * (2 * n_halves + n_bytes) * V_LANES, bytes = at + 2 * n_halves * V_LANES;
    vi dot[V_PANELS][V_TILE_ROWS], rest[V_PANELS][V_TILE_ROWS];
    clear_rows(dot, R, NP);
    for (int s = 0; s < n_sub; s++, q += sub * R) {
        const bool fetches = bits_of(kind) < 8 && p->is_fetching;
        if (fetches) start_fetching_sub(p, R, NP, kind);
        scaled_dots(dot, bytes + s * V_LANES, p, (from / sub + s) * run, q, sub, R, NP, kind);
        if (fetches) end_fetching_sub(p, R, NP, kind);
    }
    clear_rows(rest, R, NP); // the sums of the activations, times the minimums or, for the offset, the scales
    V_UNROLL for (int s = 0; s < n_rest; s += 2) {
        V_UNROLL for (int i = 0; i < NP; i++) {
            const vi factors = vi_load_s8_pairs(p[i].scales + bytes + ((has_min ? n_sub : 0) + s) * V_LANES);
            V_UNROLL for (int r = 0; r < R; r++)
                rest[i][r] = vi_dot_s16(rest[i][r], factors, vi_bcast(dc + (2 * s + 1) * R + r));
        }
    }
    V_UNROLL for (int i = 0; i < NP; i++) {
        const vf d = vf_load_f16(p[i].scales + at), dmin = vf_load_f16(p[i].scales + at + 2 * V_LANES * (n_halves - 1));
        V_UNROLL for (int r = 0; r < R; r++) {
            const vi products = has_offset ? vi_sub(dot[i][r], vi_sll(rest[i][r], 5)) : dot[i][r];
            vf value = vf_mul(vf_from_vi(products), d);
            if (has_min) value = vf_fnma(vf_from_vi(rest[i][r]), dmin, value);
            sum[i][r] = vf_fma(value, vf_bcast(dc + r), sum[i][r]);
        }
    }
}

#endif
