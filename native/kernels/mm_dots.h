// The inner products of instruction sets whose product of bytes adds to s32.
#ifndef UMA_MM_DOTS_H
#define UMA_MM_DOTS_H

V_INLINE void byte_dots(vi dot[V_PANELS][V_TILE_ROWS], struct panel * p, int64_t at, const int8_t * q, const int sub,
    const int R, const int NP, const enum kind kind) {
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

// dot += the products of group g of all rows of a tile by one vector.
V_INLINE void group_dots(vi dot[V_TILE_ROWS], vi w, const int8_t * q, const int g, const int R, const enum kind kind) {
    V_UNROLL for (int r = 0; r < R; r++) {
        if (V_DOTS_AT) {
            dot[r] = vi_dot_at(dot[r], w, q + 4 * (g * R + r));
            continue;
        }
        const vi x = vi_bcast(q + 4 * (g * R + r));
        dot[r] = kind == KIND_NT_S8 ? vi_dot_s8(dot[r], w, x) : vi_dot_u6(dot[r], w, x);
    }
}

// dot += the products of 32 (with 6 bits, 16) columns of repacked weights of 4 to 6 bits in place, of one panel.
V_INLINE void bit_dots(vi dot[V_TILE_ROWS], struct panel * p, const uint8_t * w, const int8_t * q, const int R,
    const enum kind kind) {
    if (kind == KIND_N6) {
        vi v[4];
        six_bits(w, v);
        V_UNROLL for (int g = 0; g < 4; g++) {
            fetch_next(p, kind, R);
            group_dots(dot, v[g], q, g, R, kind);
        }
        return;
    }
    const bool has_fifth = bits_of(kind) == 5, has_table = kind == KIND_NT_S8 || kind == KIND_NT_U5;
    struct fifth_bits fifth;
    if (has_fifth) fifth = fifth_bits_at(w + 16 * V_LANES);
    V_UNROLL for (int k = 0; k < 4; k++) {
        vi low, high;
        nibbles(w + 4 * V_LANES * k, &low, &high);
        if (has_fifth) add_fifth(&fifth, &low, &high);
        if (has_table) low = vi_lookup(p->table, low), high = vi_lookup(p->table, high);
        fetch_next(p, kind, R);
        group_dots(dot, low, q, k, R, kind);
        group_dots(dot, high, q, k + 4, R, kind);
    }
}

// dot[panel][row] += the products of the R rows of a tile by `sub` columns of each panel, from byte `at` on.
V_INLINE void sub_dots(vi dot[V_PANELS][V_TILE_ROWS], struct panel * p, int64_t at, const int8_t * q, const int sub,
    const int R, const int NP, const enum kind kind) {
    if (bits_of(kind) == 8) byte_dots(dot, p, at, q, sub, R, NP, kind);
    else bit_dots(dot[0], p, p->q + at, q, R, kind);
}

#endif
