// The attention kernel of one instruction set, as a table entry. attn_<isa>.c includes this file after a vec_*.h.
#ifndef UMA_ATTN_TABLE_H
#define UMA_ATTN_TABLE_H

#include "attn_direct.h"

static size_t attn_scratch_bytes(int dim_k, int dim_v) {
    const size_t dk = pad_dim(dim_k), dv = pad_dim(dim_v);
    return 4 * (MAX_Q * dk + CELLS * (dk > dv ? dk : dv) + dk * CELLS + 2 * MAX_Q * CELLS);
}

static struct attn_work attn_work_at(const struct uma_attn * at, float * p) {
    struct attn_work w = { .dk = pad_dim(at->dim_k), .dv = pad_dim(at->dim_v) };
    w.q = p;
    w.kv = w.q + MAX_Q * w.dk;
    w.kt = w.kv + CELLS * (w.dk > w.dv ? w.dk : w.dv);
    w.scores = w.kt + w.dk * CELLS;
    return w;
}

static void load_queries(const struct uma_attn * at, const struct attn_work * w) {
    const float scale = at->softcap != 0 ? at->scale / at->softcap : at->scale;
    for (int i = 0; i < at->n_rows * at->n_group; i++) {
        const float * q = (const float *)(const void *)((const char *)at->q + (size_t)(i / at->n_group) * at->q_row
            + (size_t)(i % at->n_group) * at->q_head);
        float * out = w->q + (size_t)i * w->dk;
        for (int d = 0; d < at->dim_k; d++) out[d] = q[d] * scale;
        for (size_t d = (size_t)at->dim_k; d < w->dk; d++) out[d] = 0;
    }
}

// Collects the queries that see any of the tile's cells, and fills in their rows' masks.
static int visible_queries(const struct uma_attn * at, int64_t cell, int n, float * masks, int * queries) {
    int count = 0;
    for (int r = 0; r < at->n_rows; r++) {
        if (!row_mask(at, r, cell, n, masks + r * CELLS)) continue;
        for (int g = 0; g < at->n_group; g++) queries[count++] = r * at->n_group + g;
    }
    return count;
}

// Replaces V by zeros in cells that a single query does not see.
static void clear_unseen(float * v, size_t stride, size_t dv, const float * mask) {
    for (int c = 0; c < CELLS; c++) {
        if (mask[c] == -INFINITY) memset(v + (size_t)c * stride, 0, dv * 4);
    }
}

// `is_alone`: there is a single query, and its result takes nothing from cells that it does not see. (In general it
// takes V times 0, which may be NaN.)
static void attn_tile(const struct uma_attn * at, const struct attn_work * w, int64_t cell,
    struct uma_attn_part * parts, float * out, size_t out_stride, bool is_alone) {
    const int n = at->cell_end - cell < CELLS ? (int)(at->cell_end - cell) : CELLS;
    float * masks = w->scores + MAX_Q * CELLS;
    int queries[MAX_Q];
    const int n_q = visible_queries(at, cell, n, masks, queries);
    if (n_q == 0) return;
    const int64_t fetch_end = at->fetch_end ? at->fetch_end : at->cell_end;
    struct ahead next = ahead_of(&at->k, at->kv_type, cell + CELLS, fetch_end, at->dim_k);
    const bool is_direct_k = is_direct_attn(at->dim_k, n_q), is_direct_v = !is_alone && is_direct_attn(at->dim_v, n_q);
    // V is the beginning of K's rows, which are already converted
    const bool is_v_in_k = at->v.base == at->k.base && !is_direct_k;
    if (!is_direct_k) load_cells(&at->k, at->kv_type, cell, n, at->dim_k, w->kv);
    if (is_direct_k) {
        scores_directly(at, w, cell, n, queries, n_q, &next);
    } else if (n_q < TRANSPOSE_FROM) {
        scores_by_dots(w, queries, n_q, &next);
    } else {
        scores_by_lanes(w, queries, n_q);
        fetch_rows(&next, CELLS);
    }
    const float * p[MAX_Q];
    float * o[MAX_Q];
    int n_live = 0;
    if (!is_v_in_k) next = ahead_of(&at->v, at->kv_type, cell + CELLS, fetch_end, at->dim_v);
    for (int i = 0; i < n_q; i++) {
        const int q = queries[i];
        if (!is_direct_v) fetch_rows(&next, (CELLS + n_q - 1) / n_q);
        float * s = w->scores + (size_t)q * CELLS;
        float * y = (float *)(void *)((char *)out + (size_t)q * out_stride);
        const float slope = at->slopes ? at->slopes[q % at->n_group] : 1.0f;
        if (!softmax_row(s, masks + q / at->n_group * CELLS, slope, at->softcap, parts + q, y, w->dv)) continue;
        p[n_live] = s;
        o[n_live++] = y;
    }
    if (is_direct_v) {
        values_directly(at, cell, n, p, o, n_live, &next);
        return;
    }
    if (!is_v_in_k) load_cells(&at->v, at->kv_type, cell, n, at->dim_v, w->kv);
    if (is_alone) clear_unseen(w->kv, is_v_in_k ? w->dk : w->dv, w->dv, masks);
    rows_product(p, n_live, w->kv, is_v_in_k ? w->dk : w->dv, o, n, (int)w->dv);
}

static void attn_part(const struct uma_attn * at, const struct attn_work * w, struct uma_attn_part * parts, float * out,
    size_t out_stride, bool is_alone) {
    for (int i = 0; i < at->n_rows * at->n_group; i++) {
        parts[i] = (struct uma_attn_part){ -INFINITY, 0 };
        memset((char *)out + (size_t)i * out_stride, 0, w->dv * 4);
    }
    load_queries(at, w);
    for (int64_t cell = at->cell_begin; cell < at->cell_end; cell += CELLS)
        attn_tile(at, w, cell, parts, out, out_stride, is_alone);
}

// Returns whether all n values are finite; n is a multiple of 16.
static inline bool are_finite(const float * x, size_t n) {
    vf sum = vf_set1(0);
    for (size_t i = 0; i < n; i += V_LANES) sum = vf_fma(vf_load(x + i), vf_set1(0), sum);
    return vf_sum(sum) == 0;
}

static struct uma_attn query_alone(const struct uma_attn * at, int q) {
    struct uma_attn one = *at;
    const int row = q / at->n_group, head = q % at->n_group;
    one.n_rows = one.n_group = 1;
    one.q = (const float *)(const void *)((const char *)at->q + (size_t)row * at->q_row + (size_t)head * at->q_head);
    if (at->mask) one.mask = (const uint16_t *)(const void *)((const char *)at->mask + (size_t)row * at->mask_row);
    if (at->row_cells) one.row_cells = at->row_cells + row;
    if (at->row_begin) one.row_begin = at->row_begin + row;
    if (at->slopes) one.slopes = at->slopes + head;
    return one;
}

// Cells that a query does not see may hold NaN or infinity, left by another sequence or by one that has ended. A query
// whose result is not finite is computed again, alone.
static void attn_run(const struct uma_attn * at, struct uma_attn_part * parts, float * out, size_t out_stride,
    void * scratch) {
    const struct attn_work w = attn_work_at(at, scratch);
    attn_part(at, &w, parts, out, out_stride, false);
    for (int i = 0; i < at->n_rows * at->n_group; i++) {
        float * y = (float *)(void *)((char *)out + (size_t)i * out_stride);
        if (are_finite(y, w.dv)) continue;
        const struct uma_attn one = query_alone(at, i);
        attn_part(&one, &w, parts + i, y, out_stride, true);
    }
}

#define ATTN_TABLE { attn_scratch_bytes, attn_run }

#endif
