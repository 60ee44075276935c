// f32 building blocks of attention: exp, tanh, and a product of a few rows by a matrix that is in the cache.
#ifndef UMA_ATTN_MATH_H
#define UMA_ATTN_MATH_H

// exp(x) for x <= 88, to about 1 ulp; exactly 0 below -87. The usual split x = n ln 2 + r and a polynomial in r.
V_INLINE vf vf_exp(vf x) {
    const vf low = vf_max(x, vf_set1(-87.0f));
    const vf n = vf_round(vf_mul(low, vf_set1(1.44269504088896341f)));
    vf r = vf_fnma(n, vf_set1(0.693359375f), low);
    r = vf_fnma(n, vf_set1(-2.12194440e-4f), r);
    vf p = vf_set1(1.9875691500e-4f);
    p = vf_fma(p, r, vf_set1(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set1(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set1(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set1(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set1(5.0000001201e-1f));
    p = vf_fma(vf_mul(r, r), p, vf_add(r, vf_set1(1.0f)));
    const vf two_to_n = vf_from_bits(vi_sll(vi_add(vi_from_vf(n), vi_set1(127)), 23));
    return vf_keep_from(vf_mul(p, two_to_n), x, -87.0f);
}

V_INLINE vf vf_tanh(vf x) {
    const vf e = vf_exp(vf_mul(vf_max(vf_min(x, vf_set1(20.0f)), vf_set1(-20.0f)), vf_set1(2.0f)));
    return vf_sub(vf_set1(1.0f), vf_div(vf_set1(2.0f), vf_add(e, vf_set1(1.0f))));
}

// c[i][0 .. NV * V_LANES) += sum over k of a[i][k] * b[k][..], for NA rows.
V_INLINE void block_product(const float * const * a, const float * b, size_t b_row, float * const * c, size_t c_at,
    int n_k, const int NA, const int NV) {
    vf sum[4][V_BLOCK_COLS];
    for (int i = 0; i < NA; i++) {
        for (int v = 0; v < NV; v++) sum[i][v] = vf_load(c[i] + c_at + (size_t)(v * V_LANES));
    }
    for (int k = 0; k < n_k; k++, b += b_row) {
        vf bv[V_BLOCK_COLS];
        for (int v = 0; v < NV; v++) bv[v] = vf_load(b + v * V_LANES);
        for (int i = 0; i < NA; i++) {
            const vf x = vf_bcast(a[i] + k);
            for (int v = 0; v < NV; v++) sum[i][v] = vf_fma(x, bv[v], sum[i][v]);
        }
    }
    for (int i = 0; i < NA; i++) {
        for (int v = 0; v < NV; v++) vf_store(c[i] + c_at + (size_t)(v * V_LANES), sum[i][v]);
    }
}

V_INLINE void block_product_cols(const float * const * a, const float * b, size_t b_row, float * const * c, int n_k,
    int n_cols, const int NA) {
    int v = 0;
    for (; v + V_BLOCK_COLS * V_LANES <= n_cols; v += V_BLOCK_COLS * V_LANES) {
        block_product(a, b + v, b_row, c, (size_t)v, n_k, NA, V_BLOCK_COLS);
    }
    for (; v < n_cols; v += V_LANES) block_product(a, b + v, b_row, c, (size_t)v, n_k, NA, 1);
}

// c[i] += a[i] * b for n rows; n_cols a multiple of V_LANES.
static void rows_product(const float * const * a, int n, const float * b, size_t b_row, float * const * c, int n_k,
    int n_cols) {
    for (; n >= 4; n -= 4, a += 4, c += 4) block_product_cols(a, b, b_row, c, n_k, n_cols, 4);
    switch (n) {
        case 1: block_product_cols(a, b, b_row, c, n_k, n_cols, 1); break;
        case 2: block_product_cols(a, b, b_row, c, n_k, n_cols, 2); break;
        case 3: block_product_cols(a, b, b_row, c, n_k, n_cols, 3); break;
        default: break;
    }
}

#endif
