// Attention of a few queries. Rows of K and V are converted on their way into the products, which needs an instruction
// set with 32 registers.
//
// Each block of queries converts the tile again, which costs less than storing it as f32 and reading it back.
#ifndef UMA_ATTN_DIRECT_H
#define UMA_ATTN_DIRECT_H

#include "attn_tile.h"

enum { DIRECT_CELLS = 4, DIRECT_COLS = 2 }; // cells, and vectors of columns, of a register block

static inline bool is_direct_attn(int dim, int n_queries) {
    return V_DIRECT_QUERIES > 0 && dim % (DIRECT_COLS * V_LANES) == 0 && n_queries < TRANSPOSE_FROM;
}

#if V_DIRECT_QUERIES > 0

// Scores of NA queries for the CELLS cells of a tile, a multiple of DIRECT_CELLS. Cells from n_rows on get the last
// row's scores, which the mask drops.
V_INLINE void direct_scores(const float * const * q, const uint8_t * k, size_t stride, int n_rows, float * const * s,
    int dim, struct ahead * next,
                            const enum uma_type type, const int NA) {
    const int n_fetch = (CELLS / DIRECT_CELLS + CELLS - 1) / (CELLS / DIRECT_CELLS);
    for (int c = 0; c < CELLS; c += DIRECT_CELLS) {
        const uint8_t * rows[DIRECT_CELLS];
        vf sum[V_DIRECT_QUERIES][DIRECT_CELLS];
        V_UNROLL for (int l = 0; l < DIRECT_CELLS; l++) rows[l] = k + (size_t)(c + l < n_rows ? c + l : n_rows - 1)
            * stride;
        V_UNROLL for (int i = 0; i < NA; i++) {
            V_UNROLL for (int l = 0; l < DIRECT_CELLS; l++) sum[i][l] = vf_set1(0);
        }
        fetch_rows(next, n_fetch);
        for (int d = 0; d < dim; d += V_LANES) {
            vf x[DIRECT_CELLS];
            V_UNROLL for (int l = 0; l < DIRECT_CELLS; l++) x[l] = load_elements(rows[l], type, d);
            V_UNROLL for (int i = 0; i < NA; i++) {
                V_UNROLL for (int l = 0; l < DIRECT_CELLS; l++) sum[i][l] = vf_fma(x[l], vf_load(q[i] + d), sum[i][l]);
            }
        }
        V_UNROLL for (int i = 0; i < NA; i++) vf_store_sums4(s[i] + c, sum[i]);
    }
}

// o[i] += p[i] * v over n rows, for NA queries.
V_INLINE void direct_values(const float * const * p, const uint8_t * v, size_t stride, int n, float * const * o,
    int dim, struct ahead * next,
                            const enum uma_type type, const int NA) {
    const int n_passes = dim / (DIRECT_COLS * V_LANES); // prefetches are spread over all passes
    for (int d = 0, pass = 0; d < dim; d += DIRECT_COLS * V_LANES, pass++) {
        int at_fetch = pass;
        const uint8_t * row = v;
        vf sum[V_DIRECT_QUERIES][DIRECT_COLS];
        V_UNROLL for (int i = 0; i < NA; i++) {
            V_UNROLL for (int j = 0; j < DIRECT_COLS; j++) sum[i][j] = vf_load(o[i] + d + j * V_LANES);
        }
        for (int c = 0; c < n; c++, row += stride) {
            vf x[DIRECT_COLS];
            if (c == at_fetch) {
                fetch_rows(next, 1);
                at_fetch += n_passes;
            }
            V_UNROLL for (int j = 0; j < DIRECT_COLS; j++) x[j] = load_elements(row, type, d + j * V_LANES);
            V_UNROLL for (int i = 0; i < NA; i++) {
                V_UNROLL for (int j = 0; j < DIRECT_COLS; j++) sum[i][j] = vf_fma(vf_bcast(p[i] + c), x[j], sum[i][j]);
            }
        }
        V_UNROLL for (int i = 0; i < NA; i++) {
            V_UNROLL for (int j = 0; j < DIRECT_COLS; j++) vf_store(o[i] + d + j * V_LANES, sum[i][j]);
        }
    }
}

// Returns the size of the next block: n queries are cut into as few blocks as possible, of sizes as even as possible.
static inline int next_block(int n) {
    const int n_blocks = (n + V_DIRECT_QUERIES - 1) / V_DIRECT_QUERIES;
    return (n + n_blocks - 1) / n_blocks;
}

#define BLOCKS(CALL) CALL(1) CALL(2) CALL(3) CALL(4) CALL(5) CALL(6) CALL(7)

typedef void scores_fn(const float * const * q, const uint8_t * k, size_t stride, int n_rows, float * const * s,
    int dim, struct ahead * next, int n);
typedef void values_fn(const float * const * p, const uint8_t * v, size_t stride, int n, float * const * o, int dim,
    struct ahead * next, int n_queries);

// Functions for one block of n queries, for each KV type.
#define OF_TYPE(name, TYPE)                                                                                            \
    static void name##_scores(const float * const * q, const uint8_t * k, size_t stride, int n_rows, float * const * s,\
        int dim,                                                                                                       \
                              struct ahead * next, int n) {                                                            \
        switch (n) { BLOCKS(SCORES_##TYPE) }                                                                           \
    }                                                                                                                  \
    static void name##_values(const float * const * p, const uint8_t * v, size_t stride, int n, float * const * o,     \
        int dim,                                                                                                       \
                              struct ahead * next, int n_queries) {                                                    \
        switch (n_queries) { BLOCKS(VALUES_##TYPE) }                                                                   \
    }
#define SCORES_OF(NA, TYPE) case NA: direct_scores(q, k, stride, n_rows, s, dim, next, TYPE, NA); break;
#define VALUES_OF(NA, TYPE) case NA: direct_values(p, v, stride, n, o, dim, next, TYPE, NA); break;
#define SCORES_F16(NA) SCORES_OF(NA, UMA_F16)
#define VALUES_F16(NA) VALUES_OF(NA, UMA_F16)
#define SCORES_BF16(NA) SCORES_OF(NA, UMA_BF16)
#define VALUES_BF16(NA) VALUES_OF(NA, UMA_BF16)
#define SCORES_Q8_0(NA) SCORES_OF(NA, UMA_Q8_0)
#define VALUES_Q8_0(NA) VALUES_OF(NA, UMA_Q8_0)
#define SCORES_Q4_0(NA) SCORES_OF(NA, UMA_Q4_0)
#define VALUES_Q4_0(NA) VALUES_OF(NA, UMA_Q4_0)
OF_TYPE(f16, F16)
OF_TYPE(bf16, BF16)
OF_TYPE(q8_0, Q8_0)
OF_TYPE(q4_0, Q4_0)

static inline scores_fn * scores_of(enum uma_type type) {
    return type == UMA_BF16 ? bf16_scores : type == UMA_Q8_0 ? q8_0_scores : type == UMA_Q4_0 ? q4_0_scores
        : f16_scores;
}

static inline values_fn * values_of(enum uma_type type) {
    return type == UMA_BF16 ? bf16_values : type == UMA_Q8_0 ? q8_0_values : type == UMA_Q4_0 ? q4_0_values
        : f16_values;
}

static void scores_directly(const struct uma_attn * at, const struct attn_work * w, int64_t cell, int n_cells,
    const int * queries, int n, struct ahead * next) {
    const uint8_t * k = cell_at(&at->k, cell);
    const float * q[MAX_Q];
    float * s[MAX_Q];
    for (int i = 0; i < n; i++) {
        q[i] = w->q + (size_t)queries[i] * w->dk;
        s[i] = w->scores + (size_t)queries[i] * CELLS;
    }
    for (int i = 0, size; i < n; i += size) {
        size = next_block(n - i);
        scores_of(at->kv_type)(q + i, k, at->k.cell_stride, n_cells, s + i, at->dim_k, next, size);
    }
}

static void values_directly(const struct uma_attn * at, int64_t cell, int n_cells, const float * const * p,
    float * const * o, int n, struct ahead * next) {
    const uint8_t * v = cell_at(&at->v, cell);
    for (int i = 0, size; i < n; i += size) {
        size = next_block(n - i);
        values_of(at->kv_type)(p + i, v, at->v.cell_stride, n_cells, o + i, at->dim_v, next, size);
    }
}

#else

static void scores_directly(const struct uma_attn * at, const struct attn_work * w, int64_t cell, int n_cells,
    const int * queries, int n, struct ahead * next) {
    (void)at, (void)w, (void)cell, (void)n_cells, (void)queries, (void)n, (void)next;
}

static void values_directly(const struct uma_attn * at, int64_t cell, int n_cells, const float * const * p,
    float * const * o, int n, struct ahead * next) {
    (void)at, (void)cell, (void)n_cells, (void)p, (void)o, (void)n, (void)next;
}

#endif

#endif
