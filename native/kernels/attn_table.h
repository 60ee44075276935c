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

static void attn_tile(const struct uma_attn * at, const struct attn_work * w, int64_t cell,
    struct uma_attn_part * parts, float * out, size_t out_stride) {
    const int n = at->cell_end - cell < CELLS ? (int)(at->cell_end - cell) : CELLS;
    float * masks = w->scores + MAX_Q * CELLS;
    int queries[MAX_Q];
    const int n_q = visible_queries(at, cell, n, masks, queries);
    if (n_q == 0) return;
    const int64_t fetch_end = at->fetch_end ? at->fetch_end : at->cell_end;
    struct ahead next = ahead_of(&at->k, at->kv_type, cell + CELLS, fetch_end, at->dim_k);
    const bool is_direct_k = is_direct_attn(at->dim_k, n_q), is_direct_v = is_direct_attn(at->dim_v, n_q);
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
    rows_product(p, n_live, w->kv, is_v_in_k ? w->dk : w->dv, o, n, (int)w->dv);
}

static void attn_run(const struct uma_attn * at, struct uma_attn_part * parts, float * out, size_t out_stride,
    void * scratch) {
    const struct attn_work w = attn_work_at(at, scratch);
    for (int i = 0; i < at->n_rows * at->n_group; i++) {
        parts[i] = (struct uma_attn_part){ -INFINITY, 0 };
        memset((char *)out + (size_t)i * out_stride, 0, w.dv * 4);
    }
    load_queries(at, &w);
    for (int64_t cell = at->cell_begin; cell < at->cell_end; cell += CELLS)
        attn_tile(at, &w, cell, parts, out, out_stride);
}

#define ATTN_TABLE { attn_scratch_bytes, attn_run }

#endif
