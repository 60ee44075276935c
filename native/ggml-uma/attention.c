// FLASH_ATTN_EXT: tasks of (stream, KV head, block of rows, part of the cells); parts are merged after a barrier.
#include "op.h"

#include <math.h>
#include <string.h>

enum {
    MAX_GROUP = UMA_ATTN_MAX_Q,
    TASKS_PER_THREAD = 4,
    MIN_PART_CELLS = 256, // merging a shorter part costs more than spreading it over threads saves
};

// How one operation is cut into tasks. Everything follows from its shape and the number of threads.
struct cut {
    int64_t n_streams, n_kv_heads, n_rows, n_cells;
    int group, rows, parts;                  // query heads per KV head; rows per task; parts of the cells
    int64_t row_blocks, part_cells, n_tasks; // part_cells: a multiple of 64
    size_t dim;                              // dim_v as in partial results: rounded up to 16
};

static struct cut cut_of(const struct ggml_tensor * op, int n_threads) {
    const struct ggml_tensor * q = op->src[0];
    const struct ggml_tensor * k = op->src[1];
    struct cut c = { .n_streams = q->ne[3], .n_kv_heads = k->ne[2], .n_rows = q->ne[1], .n_cells = k->ne[1] };
    c.group = (int)(q->ne[2] / k->ne[2]);
    c.rows = (int)MIN((int64_t)(UMA_ATTN_MAX_Q / c.group), c.n_rows);
    c.row_blocks = (c.n_rows + c.rows - 1) / c.rows;
    const int64_t whole = c.n_streams * c.n_kv_heads * c.row_blocks;
    const int64_t wanted = n_threads == 1 ? 1 : ((int64_t)n_threads * TASKS_PER_THREAD + whole - 1) / whole;
    const int64_t most = MAX(1, c.n_cells / MIN_PART_CELLS);
    const int64_t parts = MIN(wanted, most);
    c.part_cells = ((c.n_cells + parts - 1) / parts + UMA_PAGE_CELLS - 1) / UMA_PAGE_CELLS * UMA_PAGE_CELLS;
    c.parts = (int)((c.n_cells + c.part_cells - 1) / c.part_cells);
    c.n_tasks = whole * c.parts;
    c.dim = ((size_t)op->src[2]->ne[0] + 15) & ~(size_t)15;
    return c;
}

// A slot holds one task's partial results. There is one slot per task, or one per thread if the results of each task
// are merged immediately.
static size_t slot_queries(const struct cut * c) { return (size_t)c->rows * (size_t)c->group; }
static size_t n_slots(const struct cut * c, int n_threads) {
    return c->parts > 1 ? (size_t)c->n_tasks : (size_t)n_threads;
}

static bool is_kv_ours(const struct ggml_tensor * t) {
    const bool has_kernel = t->type == GGML_TYPE_F16 || t->type == GGML_TYPE_BF16 || t->type == GGML_TYPE_Q8_0
        || t->type == GGML_TYPE_Q4_0;
    return has_kernel && t->ne[0] <= 256 && uma_is_plain(t);
}

bool uma_attention_is_ours(const struct ggml_tensor * op) {
    const struct ggml_tensor * q = op->src[0];
    const struct ggml_tensor * k = op->src[1];
    const struct ggml_tensor * v = op->src[2];
    const struct ggml_tensor * mask = op->src[3];
    if (q->type != GGML_TYPE_F32 || k->type != v->type || !is_kv_ours(k) || !is_kv_ours(v) || !uma_is_plain(q))
        return false;
    if (q->ne[2] % k->ne[2] != 0 || q->ne[2] / k->ne[2] > MAX_GROUP || k->ne[2] != v->ne[2]) return false;
    if (k->ne[3] != q->ne[3] || v->ne[3] != q->ne[3] || k->ne[1] == 0) return false;
    return !mask || (mask->type == GGML_TYPE_F16 && mask->ne[2] == 1 && uma_is_plain(mask));
}

// Offsets in the work buffer: one scratch per thread, then the slots.
struct layout {
    size_t scratch, parts, out, total;
};

static struct layout layout_of(const struct ggml_tensor * op, const struct cut * c, int n_threads) {
    const size_t n = n_slots(c, n_threads) * slot_queries(c);
    struct layout l;
    l.scratch = uma_pad(uma_kernels()->attn->scratch_bytes((int)op->src[1]->ne[0], (int)op->src[2]->ne[0]));
    l.parts = (size_t)n_threads * l.scratch;
    l.out = l.parts + uma_pad(n * sizeof(struct uma_attn_part));
    l.total = l.out + n * c->dim * sizeof(float);
    return l;
}

size_t uma_attention_work_size(int n_threads, const struct ggml_tensor * op) {
    const struct cut c = cut_of(op, n_threads);
    return 64 + layout_of(op, &c, n_threads).total;
}

static void slopes_of(const struct ggml_tensor * op, int64_t first_head, int n, float * slopes) {
    float max_bias;
    memcpy(&max_bias, (const float *)op->op_params + 1, sizeof(float));
    const uint32_t n_head = (uint32_t)op->src[0]->ne[2];
    const uint32_t n_log2 = 1u << (uint32_t)floor(log2(n_head));
    const float m0 = powf(2.0f, -max_bias / (float)n_log2), m1 = powf(2.0f, -max_bias / 2.0f / (float)n_log2);
    for (int i = 0; i < n; i++) {
        const uint32_t h = (uint32_t)first_head + (uint32_t)i;
        if (max_bias <= 0.0f) slopes[i] = 1.0f;
        else slopes[i] = h < n_log2 ? powf(m0, (float)(h + 1)) : powf(m1, (float)(2 * (h - n_log2) + 1));
    }
}

// The place of a task: task = ((stream * kv_heads + head) * row_blocks + block) * parts + part.
struct place {
    int64_t stream, head, row, part;
};

static struct place place_of(const struct cut * c, int64_t task) {
    struct place p;
    p.part = task % c->parts;
    task /= c->parts;
    p.row = task % c->row_blocks * c->rows;
    task /= c->row_blocks;
    p.head = task % c->n_kv_heads;
    p.stream = task / c->n_kv_heads;
    return p;
}

static const char * at(const struct ggml_tensor * t, int64_t i1, int64_t i2, int64_t i3) {
    return (const char *)t->data + (size_t)i1 * t->nb[1] + (size_t)i2 * t->nb[2] + (size_t)i3 * t->nb[3];
}

static struct uma_attn attn_of(const struct ggml_tensor * op, const struct cut * c, const struct place * p,
    const float * slopes) {
    const struct ggml_tensor * q = op->src[0];
    const struct ggml_tensor * k = op->src[1];
    const struct ggml_tensor * v = op->src[2];
    const struct ggml_tensor * mask = op->src[3];
    const float * params = (const float *)op->op_params;
    return (struct uma_attn){
        .kv_type = uma_type_of(k->type), .dim_k = (int)k->ne[0], .dim_v = (int)v->ne[0],
        .n_rows = (int)MIN((int64_t)c->rows, c->n_rows - p->row), .n_group = c->group,
        .q = (const float *)(const void *)at(q, p->row, p->head * c->group, p->stream), .q_row = q->nb[1],
            .q_head = q->nb[2],
        .k = { at(k, 0, p->head, p->stream), k->nb[1], 0, NULL },
        .v = { at(v, 0, p->head, p->stream), v->nb[1], 0, NULL },
        .cell_begin = p->part * c->part_cells, .cell_end = MIN((p->part + 1) * c->part_cells, c->n_cells),
        .mask = mask ? (const uint16_t *)(const void *)at(mask, p->row, 0, p->stream % mask->ne[3]) : NULL,
            .mask_row = mask ? mask->nb[1] : 0,
        .scale = params[0], .softcap = params[2], .slopes = slopes,
    };
}

// Returns the place of a task's query i among all queries of the operation, in the order of dst.
static size_t query_index(const struct cut * c, const struct place * p, int i) {
    const int64_t row = p->stream * c->n_rows + p->row + i / c->group;
    return (size_t)((row * c->n_kv_heads + p->head) * c->group + i % c->group);
}

struct slots {
    struct uma_attn_part * parts;
    float * out;
    void * scratch; // this thread's
};

// Merges query i of the block of rows that starts at `p`. Its parts are in consecutive slots from `slot` on.
static void merge_query(const struct ggml_tensor * op, const struct cut * c, const struct place * p,
    const struct slots * s, size_t slot, int i) {
    const struct ggml_tensor * sinks = op->src[4];
    const size_t query = query_index(c, p, i), n_heads = (size_t)c->n_kv_heads * (size_t)c->group;
    const size_t first = slot * slot_queries(c) + (size_t)i, stride = slot_queries(c);
    const float * sink = sinks ? (const float *)sinks->data + query % n_heads : NULL;
    float * y = (float *)(void *)((char *)op->data + query * op->nb[1]);
    uma_attn_merge(s->parts + first, stride * sizeof(struct uma_attn_part), s->out + first * c->dim,
        stride * c->dim * sizeof(float), c->parts,
                   (int)op->src[2]->ne[0], sink, y);
}

static void run_task(const struct ggml_tensor * op, const struct cut * c, const struct slots * s, int64_t task,
    int ith) {
    const struct place p = place_of(c, task);
    float slopes[MAX_GROUP];
    slopes_of(op, p.head * c->group, c->group, slopes);
    const struct uma_attn attn = attn_of(op, c, &p, slopes);
    const size_t slot = c->parts > 1 ? (size_t)task : (size_t)ith, first = slot * slot_queries(c);
    uma_kernels()->attn->run(&attn, s->parts + first, s->out + first * c->dim, c->dim * sizeof(float), s->scratch);
    if (c->parts > 1) return;
    for (int i = 0; i < attn.n_rows * c->group; i++) merge_query(op, c, &p, s, slot, i);
}

// Merges this thread's share of the queries: task `block * parts` is the first part of a block of rows.
static void merge_all(const struct ggml_tensor * op, const struct cut * c, const struct slots * s, int ith, int nth) {
    const int64_t n = (int64_t)slot_queries(c);
    for (int64_t i = ith; i < c->n_tasks / c->parts * n; i += nth) {
        const int64_t first_task = i / n * c->parts;
        const struct place p = place_of(c, first_task);
        if (p.row + i % n / c->group < c->n_rows) merge_query(op, c, &p, s, (size_t)first_task, (int)(i % n));
    }
}

void uma_attention_compute(const struct ggml_compute_params * params, struct ggml_tensor * op) {
    const struct cut c = cut_of(op, params->nth);
    const struct layout l = layout_of(op, &c, params->nth);
    char * work = uma_align(params->wdata);
    const struct slots s = {
        (struct uma_attn_part *)(void *)(work + l.parts), (float *)(void *)(work + l.out),
            work + (size_t)params->ith * l.scratch };
    if (params->ith == 0) ggml_threadpool_chunk_set(params->threadpool, params->nth);
    ggml_barrier(params->threadpool);
    for (int64_t t = params->ith; t < c.n_tasks; t = ggml_threadpool_chunk_add(params->threadpool, 1))
        run_task(op, &c, &s, t, params->ith);
    if (c.parts == 1) return;
    ggml_barrier(params->threadpool);
    merge_all(op, &c, &s, params->ith, params->nth);
}
