// Attention over paged KV, as a custom operation of ggml's graph: each page of 64 cells is read once per KV head for
// all rows that see it.
//
// A row that several spans contribute to is merged by the thread that finishes the last of them, so no barrier is
// needed.
#include "paged.h"

#include <math.h>
#include <string.h>

typedef struct slot {
    struct uma_attn_part * parts;
    float * out;
} slot;

static char * scratch_of(const uma_paged * p, int ith) { return p->scratch + (size_t) ith * p->scratch_bytes; }

// Returns one of a thread's two slots: 0 holds the results of one part, 1 the sum over several parts.
static slot own_slot(const uma_paged * p, int ith, int which) {
    const size_t parts = uma_pad64(uma_paged_queries_most(p) * sizeof(struct uma_attn_part)),
        out = uma_pad64(uma_paged_queries_most(p) * p->dim * sizeof(float));
    char * at = scratch_of(p, ith) + uma_pad64(uma_kernels()->attn->scratch_bytes(p->shape.dim_k, p->shape.dim_v))
        + (size_t) which * (parts + out);
    return (slot) { (struct uma_attn_part *) (void *) at, (float *) (void *) (at + parts) };
}

// Slots are in the order (row slot, KV head, query head of its group).
static slot slot_at(const uma_paged * p, int64_t row_slot, int32_t head) {
    const size_t query = ((size_t) row_slot * (size_t) p->shape.n_head_kv + (size_t) head) * (size_t) p->group;
    return (slot) { p->parts + query, p->out + query * p->dim };
}

static float * result_of(const struct ggml_tensor * dst, const uma_paged * p, int32_t row, int32_t head, int32_t g) {
    return (float *) (void *) ((char *) dst->data + (size_t) row * dst->nb[1])
        + ((size_t) head * (size_t) p->group + (size_t) g) * (size_t) p->shape.dim_v;
}

static enum uma_type kv_type_of(enum ggml_type type) {
    switch (type) {
        case GGML_TYPE_BF16: return UMA_BF16;
        case GGML_TYPE_Q8_0: return UMA_Q8_0;
        case GGML_TYPE_Q4_0: return UMA_Q4_0;
        default: return UMA_F16;
    }
}

// Computes cells begin..end of a span into a slot.
static void compute_part(const struct ggml_tensor * dst, const uma_paged * p, const uma_page_span * s, int64_t begin,
    int64_t end, int32_t head, slot to, int ith) {
    const struct ggml_tensor * q = dst->src[0];
    const size_t k_cell = (size_t) p->shape.k_bytes, v_cell = (size_t) p->shape.v_bytes;
    const size_t in_page = (size_t) (head / p->shape.n_share) * UMA_PAGE_CELLS;
    const struct uma_attn attn = {
        .kv_type = kv_type_of(dst->src[1]->type), .dim_k = p->shape.dim_k, .dim_v = p->shape.dim_v,
        .n_rows = s->n_rows, .n_group = p->group,
        .q = (const float *) (const void *) ((const char *) q->data + (size_t) s->first_row * q->nb[2]
            + (size_t) head * (size_t) p->group * q->nb[1]),
        .q_row = q->nb[2], .q_head = q->nb[1],
        .k = { (const char *) dst->src[1]->data + in_page * k_cell, k_cell, p->shape.page_bytes, s->pages },
        .v = { (const char *) dst->src[2]->data + in_page * v_cell, v_cell, p->shape.page_bytes, s->pages },
        .cell_begin = begin, .cell_end = end, .fetch_end = s->end, .row_cells = p->cells + s->first_row,
            .row_begin = p->shape.window ? p->begin + s->first_row : NULL,
        .scale = p->shape.scale, .softcap = p->shape.softcap,
    };
    uma_kernels()->attn->run(&attn, to.parts, to.out, p->dim * sizeof(float), scratch_of(p, ith));
}

static int64_t part_end(const uma_page_span * s, int64_t cell) {
    return uma_part_end(cell) < s->end ? uma_part_end(cell) : s->end;
}

// Computes all parts of a span and adds them up. Returns the slot with the sum.
static slot compute_span(const struct ggml_tensor * dst, const uma_paged * p, const uma_page_span * s, int32_t head,
    int ith) {
    const slot part = own_slot(p, ith, 0), sum = own_slot(p, ith, 1);
    int64_t end = part_end(s, s->begin);
    compute_part(dst, p, s, s->begin, end, head, sum, ith);
    for (int64_t begin = end; begin < s->end; begin = end) {
        end = part_end(s, begin);
        compute_part(dst, p, s, begin, end, head, part, ith);
        for (int32_t i = 0; i < s->n_rows * p->group; i++) {
            uma_attn_fold(sum.parts + i, sum.out + (size_t) i * p->dim, part.parts + i, part.out + (size_t) i * p->dim,
                p->shape.dim_v);
        }
    }
    return sum;
}

// Stores the results of a span whose rows have other spans too, where merge_row reads them.
static void keep(const uma_paged * p, const uma_page_span * s, int32_t head, slot own) {
    const size_t group = (size_t) p->group;
    for (int32_t r = 0; r < s->n_rows; r++) {
        const slot to = slot_at(p, s->slot + r, head);
        memcpy(to.parts, own.parts + (size_t) r * group, group * sizeof(*to.parts));
        memcpy(to.out, own.out + (size_t) r * group * p->dim, group * p->dim * sizeof(float));
    }
}

// Returns a query head's sink; NULL if the layer has no sinks.
static const float * sink_of(const struct ggml_tensor * dst, const uma_paged * p, int32_t head, int32_t g) {
    return dst->src[3] ? (const float *) dst->src[3]->data + head * p->group + g : NULL;
}

static void write_alone(const struct ggml_tensor * dst, const uma_paged * p, const uma_page_span * s, int32_t head,
    slot own) {
    for (int32_t i = 0; i < s->n_rows * p->group; i++) {
        const int32_t g = i % p->group;
        float * y = result_of(dst, p, s->first_row + i / p->group, head, g);
        uma_attn_finish(own.parts + i, own.out + (size_t) i * p->dim, p->shape.dim_v, sink_of(dst, p, head, g), y);
    }
}

// Adds up the parts of a row in the order of their cells, once all of them are computed.
static void merge_row(const struct ggml_tensor * dst, const uma_paged * p, int32_t row, int32_t head) {
    const int64_t * slots = p->part_slot + p->first_part[row];
    const int32_t n_parts = p->first_part[row + 1] - p->first_part[row];
    for (int32_t g = 0; g < p->group; g++) {
        float * y = result_of(dst, p, row, head, g);
        struct uma_attn_part sum = { -INFINITY, 0 };
        for (int32_t i = 0; i < n_parts; i++) {
            const slot part = slot_at(p, slots[i], head);
            uma_attn_fold(&sum, y, part.parts + g, part.out + (size_t) g * p->dim, p->shape.dim_v);
        }
        uma_attn_finish(&sum, y, p->shape.dim_v, sink_of(dst, p, head, g), y);
    }
}

static void run_task(struct ggml_tensor * dst, uma_paged * p, int64_t task, int ith) {
    const uma_page_span * s = &p->spans[task / p->shape.n_head_kv];
    const int32_t head = (int32_t) (task % p->shape.n_head_kv);
    const slot own = compute_span(dst, p, s, head, ith);
    if (s->slot < 0) {
        write_alone(dst, p, s, head, own);
        return;
    }
    keep(p, s, head, own);
    for (int32_t row = s->first_row; row < s->first_row + s->n_rows; row++) {
        atomic_int * n_missing = &p->n_missing[row * p->shape.n_head_kv + head];
        if (atomic_fetch_sub_explicit(n_missing, 1, memory_order_acq_rel) == 1) {
            merge_row(dst, p, row, head);
            atomic_store_explicit(n_missing, p->first_part[row + 1] - p->first_part[row], memory_order_relaxed);
        }
    }
}

void uma_paged_attention(struct ggml_tensor * dst, int ith, int nth, void * paged) {
    uma_paged * p = paged;
    const int64_t n_tasks = (int64_t) p->n_spans * p->shape.n_head_kv;
    int64_t task;
    while ((task = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed)) < n_tasks) {
        run_task(dst, p, task, ith);
    }
    if (task == n_tasks + nth - 1) { // every thread has run out of tasks: ready for the next layer
        atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    }
}
