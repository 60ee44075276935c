// One tile of attention: 64 cells of K and V, read once and converted to f32, for all queries of the KV head that see
// any of them.
#ifndef UMA_ATTN_TILE_H
#define UMA_ATTN_TILE_H

#include "attn_math.h"

enum { CELLS = UMA_PAGE_CELLS, MAX_Q = UMA_ATTN_MAX_Q, TRANSPOSE_FROM = 16 };

struct attn_work {
    float * q;      // [MAX_Q][dk] scaled queries
    float * kv;     // [CELLS][dk] rows of K, then [CELLS][dv] rows of V
    float * kt;     // [dk][CELLS]
    float * scores; // [MAX_Q][CELLS]
    size_t dk, dv;  // dims rounded up to 16
};

static inline size_t pad_dim(int dim) { return ((size_t)dim + 15) & ~(size_t)15; }

static inline const uint8_t * cell_at(const struct uma_kv * kv, int64_t cell) {
    const uint8_t * base = kv->base;
    if (!kv->pages) return base + (size_t)cell * kv->cell_stride;
    return base + (size_t)kv->pages[cell / CELLS] * kv->page_stride + (size_t)(cell % CELLS) * kv->cell_stride;
}

static inline size_t row_bytes(enum uma_type type, int dim) {
    switch (type) {
        case UMA_Q8_0: return (size_t)dim / 32 * Q8_0_BYTES;
        case UMA_Q4_0: return (size_t)dim / 32 * Q4_0_BYTES;
        default: return (size_t)dim * 2;
    }
}

// Loads V_LANES elements of a row from element i on, as f32. In a quantised type they all lie in the same half of a
// block.
V_INLINE vf load_elements(const uint8_t * row, const enum uma_type type, int i) {
    switch (type) {
        case UMA_BF16: return vf_load_bf16(row + 2 * i);
        case UMA_Q8_0: {
            const uint8_t * block = row + i / 32 * Q8_0_BYTES;
            return vf_mul(vf_bcast_f16(block), vf_load_s8(block + Q8_0_QS + i % 32));
        }
        case UMA_Q4_0: {
            const uint8_t * block = row + i / 32 * Q4_0_BYTES;
            const vi both = vi_load_u8(block + Q4_0_QS + i % 16),
                bits = i % 32 < 16 ? vi_and(both, vi_set1(15)) : vi_srl(both, 4);
            return vf_mul(vf_bcast_f16(block), vf_from_vi(vi_add(bits, vi_set1(-8))));
        }
        default: return vf_load_f16(row + 2 * i);
    }
}

// Loads one row as f32 and fills its padding with zeros.
V_INLINE void load_row(const uint8_t * p, const enum uma_type type, float * out, const int dim, const int padded) {
    int i = 0;
    for (; i + V_LANES <= dim; i += V_LANES) vf_store(out + i, load_elements(p, type, i));
    for (; i < dim; i++) out[i] =
        type == UMA_BF16 ? uma_bf16_to_f32(uma_u16(p + 2 * i)) : uma_f16_to_f32(uma_u16(p + 2 * i));
    for (; i < padded; i++) out[i] = 0;
}

V_INLINE void load_rows(const uint8_t * row, size_t stride, int n, const enum uma_type type, float * out,
    const int dim) {
    const int padded = (int)pad_dim(dim);
    for (int c = 0; c < n; c++, row += stride, out += padded) load_row(row, type, out, dim, padded);
}

// Loads n cells from `cell` on as f32 rows; `cell` is the first of a tile. The rest of the tile is set to zero.
static void load_cells(const struct uma_kv * kv, enum uma_type type, int64_t cell, int n, int dim, float * out) {
    const uint8_t * row = cell_at(kv, cell);
    switch (type) {
        case UMA_BF16: load_rows(row, kv->cell_stride, n, UMA_BF16, out, dim); break;
        case UMA_Q8_0: load_rows(row, kv->cell_stride, n, UMA_Q8_0, out, dim); break;
        case UMA_Q4_0: load_rows(row, kv->cell_stride, n, UMA_Q4_0, out, dim); break;
        default:
            if (dim == 64) load_rows(row, kv->cell_stride, n, UMA_F16, out, 64);
            else if (dim == 128) load_rows(row, kv->cell_stride, n, UMA_F16, out, 128);
            else load_rows(row, kv->cell_stride, n, UMA_F16, out, dim);
            break;
    }
    if (n < CELLS) memset(out + (size_t)n * pad_dim(dim), 0, (size_t)(CELLS - n) * pad_dim(dim) * 4);
}

// The rows of the next tile, which are prefetched a few at a time between computations. The rows are short and far
// apart, so hardware prefetchers do not follow them. Prefetching all of them at once would fill the queue of misses.
struct ahead {
    const uint8_t * row;
    size_t stride;
    int n, bytes;
};

static struct ahead ahead_of(const struct uma_kv * kv, enum uma_type type, int64_t next, int64_t end, int dim) {
    const int64_t n = end - next < CELLS ? end - next : CELLS;
    if (n <= 0) return (struct ahead){ 0 };
    return (struct ahead){ cell_at(kv, next), kv->cell_stride, (int)n, (int)row_bytes(type, dim) };
}

static inline void fetch_rows(struct ahead * a, int n) {
    for (; n > 0 && a->n > 0; n--, a->n--, a->row += a->stride) {
        for (int i = 0; i < a->bytes + 63; i += 64) __builtin_prefetch(a->row + (i < a->bytes ? i : a->bytes - 1));
    }
}

static void transpose_cells(const float * rows, size_t dim, float * out) {
    for (int c = 0; c < CELLS; c += V_LANES) {
        for (size_t d = 0; d < dim; d += 4) {
            vi v[4];
            vi_rows16(v, (const uint8_t *)(rows + (size_t)c * dim + d), dim * 4);
            for (size_t j = 0; j < 4; j++) vi_store(out + (d + j) * CELLS + (size_t)c, v[j]);
        }
    }
}

// Scores of a few queries: dot products along the rows of K.
static void scores_by_dots(const struct attn_work * w, const int * queries, int n, struct ahead * next) {
    const int n_fetch = (CELLS + n * CELLS / V_LANES - 1) / (n * CELLS / V_LANES);
    for (int i = 0; i < n; i++) {
        const float * q = w->q + (size_t)queries[i] * w->dk;
        for (int c = 0; c < CELLS; c += V_LANES) {
            fetch_rows(next, n_fetch);
            vf sum[V_LANES];
            for (int l = 0; l < V_LANES; l++) sum[l] = vf_set1(0);
            for (size_t d = 0; d < w->dk; d += V_LANES) {
                const vf x = vf_load(q + d);
                for (int l = 0; l < V_LANES; l++)
                    sum[l] = vf_fma(vf_load(w->kv + (size_t)(c + l) * w->dk + d), x, sum[l]);
            }
            vf_store(w->scores + (size_t)queries[i] * CELLS + (size_t)c, vf_sums(sum));
        }
    }
}

// Returns the i-th lane in the order in which `vf_sums` pairs the lanes: bit b of i selects one of the two lanes that
// step b adds.
V_INLINE size_t lane_of(int i) {
    static const int STRIDES[] = V_SUM_STRIDES;
    size_t lane = 0;
    for (int b = 0; 1 << b < V_LANES; b++) lane += i >> b & 1 ? (size_t)STRIDES[b] : 0;
    return lane;
}

// Scores of NA queries for V_BLOCK_COLS * V_LANES cells, from transposed K. Each score is the same sum that `vf_sums`
// computes for a row of K: first each lane over the columns, then the lanes in pairs, in the same order. So a score has
// the same bits however many queries share the tile.
V_INLINE void lane_scores(const float * const * q, const float * kt, float * const * s, size_t dk, const int NA) {
    vf waiting[4][2][V_BLOCK_COLS];
    V_UNROLL for (int i = 0; i < V_LANES; i += 2) {
        const float * at[2] = { kt + lane_of(i) * CELLS, kt + lane_of(i + 1) * CELLS };
        vf sum[2][2][V_BLOCK_COLS];
        V_UNROLL for (int a = 0; a < 2 * NA * V_BLOCK_COLS; a++)
            sum[a / (NA * V_BLOCK_COLS)][a / V_BLOCK_COLS % NA][a % V_BLOCK_COLS] = vf_set1(0);
        for (size_t d = 0; d < dk; d += V_LANES) {
            V_UNROLL for (int l = 0; l < 2; l++) {
                vf x[V_BLOCK_COLS];
                V_UNROLL for (int v = 0; v < V_BLOCK_COLS; v++)
                    x[v] = vf_load(at[l] + d * CELLS + (size_t)(v * V_LANES));
                V_UNROLL for (int a = 0; a < NA; a++) {
                    const vf y = vf_bcast(q[a] + d + lane_of(i + l));
                    V_UNROLL for (int v = 0; v < V_BLOCK_COLS; v++) sum[l][a][v] = vf_fma(x[v], y, sum[l][a][v]);
                }
            }
        }
        V_UNROLL for (int a = 0; a < NA; a++) {
            V_UNROLL for (int v = 0; v < V_BLOCK_COLS; v++) {
                vf y = vf_add(sum[0][a][v], sum[1][a][v]);
                int b = 1;
                // its partner is already waiting: partial sums carry as in a binary counter
                for (; i >> b & 1; b++) y = vf_add(waiting[b][a][v], y);
                if (1 << b == V_LANES) vf_store(s[a] + v * V_LANES, y);
                else waiting[b][a][v] = y;
            }
        }
    }
}

V_INLINE void lane_scores_of(const float * const * q, const float * kt, float * const * s, size_t dk, const int NA) {
    float * at[2];
    for (int c = 0; c < CELLS; c += V_BLOCK_COLS * V_LANES) {
        for (int a = 0; a < NA; a++) at[a] = s[a] + c;
        lane_scores(q, kt + c, at, dk, NA);
    }
}

// Scores of many queries: K is transposed once.
static void scores_by_lanes(const struct attn_work * w, const int * queries, int n) {
    const float * q[MAX_Q];
    float * s[MAX_Q];
    transpose_cells(w->kv, w->dk, w->kt);
    for (int i = 0; i < n; i++) {
        q[i] = w->q + (size_t)queries[i] * w->dk;
        s[i] = w->scores + (size_t)queries[i] * CELLS;
    }
    int i = 0;
    for (; i + 2 <= n; i += 2) lane_scores_of(q + i, w->kt, s + i, w->dk, 2);
    if (i < n) lane_scores_of(q + i, w->kt, s + i, w->dk, 1);
}

// Converts the f16 mask of one row to f32. Cells that the row does not see get -INFINITY. Returns false if the row sees
// none of the cells.
static bool row_mask(const struct uma_attn * at, int row, int64_t cell, int n, float * mask) {
    int64_t limit = at->row_cells ? at->row_cells[row] - cell : n;
    int64_t first = at->row_begin ? at->row_begin[row] - cell : 0;
    if (limit > n) limit = n;
    if (first < 0) first = 0;
    if (limit <= first) return false;
    bool any = at->mask == NULL;
    int c = 0;
    if (at->mask) {
        const uint8_t * m = (const uint8_t *)at->mask + (size_t)row * at->mask_row + 2 * (size_t)cell;
        vf best = vf_set1(-INFINITY);
        for (; c + V_LANES <= limit; c += V_LANES) {
            const vf v = vf_load_f16(m + 2 * c);
            vf_store(mask + c, v);
            best = vf_max(best, v);
        }
        any = vf_max_lane(best) > -INFINITY;
        for (; c < limit; c++) {
            mask[c] = uma_f16_to_f32(uma_u16(m + 2 * c));
            any = any || mask[c] > -INFINITY;
        }
    }
    for (; c < limit; c++) mask[c] = 0;
    for (; c < CELLS; c++) mask[c] = -INFINITY;
    for (c = 0; c < first; c++) mask[c] = -INFINITY;
    return any;
}

// Turns scores into weights exp(score - max) in place and updates this query's running maximum and sum. The weight of a
// cell that is not visible is 0, even if its score is NaN. Returns false if no visible cell's score is a number.
static bool softmax_row(float * s, const float * mask, float slope, float softcap, struct uma_attn_part * part,
    float * out, size_t dv) {
    vf best = vf_set1(-INFINITY);
    for (int c = 0; c < CELLS; c += V_LANES) {
        vf v = vf_load(s + c);
        if (softcap != 0) v = vf_mul(vf_tanh(v), vf_set1(softcap));
        v = vf_fma(vf_set1(slope), vf_load(mask + c), v);
        vf_store(s + c, v);
        best = vf_max(v, best); // skips NaN: the row may not see the cell
    }
    const float max = vf_max_lane(best);
    if (!(max > -INFINITY)) {
        for (int c = 0; c < CELLS; c++) part->sum = mask[c] > -INFINITY ? NAN : part->sum; // seen, but NaN
        return false;
    }
    if (max > part->max) {
        const float shrink = part->sum > 0 ? expf(part->max - max) : 0;
        for (size_t i = 0; i < dv; i += V_LANES) vf_store(out + i, vf_mul(vf_load(out + i), vf_set1(shrink)));
        part->sum *= shrink;
        part->max = max;
    }
    vf sum = vf_set1(0);
    for (int c = 0; c < CELLS; c += V_LANES) {
        const vf e = vf_exp(vf_sub(vf_load(s + c), vf_set1(part->max)));
        vf_store(s + c, e);
        sum = vf_add(sum, e);
    }
    part->sum += max < INFINITY ? vf_sum(sum) : NAN;
    return true;
}

#endif
