// MUL_MAT_ID (mixture of experts): the rows of each expert are gathered by index, so that its weights are read once for
// all of them.
#include "runs.h"

// The work buffer holds the threads' shares of the runs, the list of each expert's rows, then the packed activations of
// one expert after the other, then one scratch per thread. This is what follows the shares.
struct experts {
    int32_t n_active;
    int32_t * id;    // [n_active] expert
    int32_t * first; // [n_active + 1] where its rows start in x and y
    int32_t * x;     // [n_rows] row of src1
    int32_t * y;     // [n_rows] row of dst
    char * acts;
    char * scratch;
};

bool uma_mul_mat_id_is_ours(const struct ggml_tensor * op) {
    const struct ggml_tensor * w = op->src[0];
    const struct ggml_tensor * x = op->src[1];
    const struct ggml_tensor * ids = op->src[2];
    if (uma_type_of(w->type) == UMA_N_TYPES || x->type != GGML_TYPE_F32 || op->type != GGML_TYPE_F32
        || ids->type != GGML_TYPE_I32) return false;
    return w->ne[3] == 1 && uma_can_read(w, ids->ne[1]) && ggml_is_contiguous(x) && ggml_is_contiguous(op);
}

static int64_t n_rows_of(const struct ggml_tensor * op) { return op->ne[1] * op->ne[2]; }

static size_t lists_bytes(const struct ggml_tensor * op) {
    return uma_pad((size_t)(3 * op->src[0]->ne[2] + 1 + 2 * n_rows_of(op)) * sizeof(int32_t) + sizeof(int32_t));
}

static size_t acts_bytes(const struct ggml_tensor * op) {
    const size_t rows = uma_kernels()->mm->acts_bytes(uma_type_of(op->src[0]->type), op->src[0]->ne[0], n_rows_of(op));
    return uma_pad(rows) + 64 * (size_t)op->src[0]->ne[2];
}

static size_t scratch_bytes(const struct ggml_tensor * op) {
    return uma_pad(uma_kernels()->mm->scratch_bytes(n_rows_of(op)));
}

size_t uma_mul_mat_id_work_size(int n_threads, const struct ggml_tensor * op) {
    return 64 + uma_shares_bytes(n_threads) + lists_bytes(op) + acts_bytes(op) + (size_t)n_threads * scratch_bytes(op);
}

static struct experts experts_at(const struct ggml_compute_params * params, const struct ggml_tensor * op) {
    char * work = (char *)(uma_shares_at(params) + params->nth);
    int32_t * lists = (int32_t *)(void *)work;
    const int64_t n = op->src[0]->ne[2];
    struct experts e = { .n_active = lists[0], .id = lists + 1, .first = lists + 1 + n };
    e.x = e.first + n + 1;
    e.y = e.x + n_rows_of(op);
    e.acts = work + lists_bytes(op);
    e.scratch = e.acts + acts_bytes(op) + (size_t)params->ith * scratch_bytes(op);
    return e;
}

static int32_t expert_of(const struct ggml_tensor * ids, int64_t token, int64_t slot) {
    return *(const int32_t *)(const void *)((const char *)ids->data + (size_t)token * ids->nb[1]
        + (size_t)slot * ids->nb[0]);
}

// Sorts the rows by expert, on one thread.
static void sort_rows(const struct ggml_tensor * op, struct experts e, int32_t * n_active) {
    const struct ggml_tensor * ids = op->src[2];
    const int64_t n_experts = op->src[0]->ne[2], n_x = op->src[1]->ne[1];
    int32_t * count = e.y + n_rows_of(op); // [n_experts], then the place of that expert's next row
    for (int64_t i = 0; i < n_experts; i++) count[i] = 0;
    for (int64_t t = 0; t < ids->ne[1]; t++) {
        for (int64_t s = 0; s < ids->ne[0]; s++) count[expert_of(ids, t, s)]++;
    }
    int32_t active = 0, row = 0;
    for (int32_t i = 0; i < n_experts; i++) {
        if (count[i] == 0) continue;
        e.id[active] = i;
        e.first[active++] = row;
        row += count[i];
        count[i] = e.first[active - 1];
    }
    e.first[active] = row;
    for (int64_t t = 0; t < ids->ne[1]; t++) {
        for (int64_t s = 0; s < ids->ne[0]; s++) {
            const int32_t at = count[expert_of(ids, t, s)]++;
            e.x[at] = (int32_t)(t * n_x + s % n_x);
            e.y[at] = (int32_t)(t * ids->ne[0] + s);
        }
    }
    *n_active = active;
}

static struct uma_mm product_of(const struct ggml_tensor * op, const struct experts * e, int32_t i) {
    const struct ggml_tensor * w = op->src[0];
    const enum uma_type type = uma_type_of(w->type);
    const bool is_repacked = uma_is_repacked(w);
    const size_t expert_bytes = is_repacked ? uma_kernels()->mm->repacked_bytes(type, w->ne[1], w->ne[0]) : w->nb[2];
    return (struct uma_mm){
        .type = type, .n_out = w->ne[1], .n_in = w->ne[0], .n_rows = e->first[i + 1] - e->first[i],
        .w = (const char *)w->data + (size_t)e->id[i] * expert_bytes, .w_stride = w->nb[1], .is_repacked = is_repacked,
        .x = (const float *)op->src[1]->data, .x_stride = op->src[1]->nb[1], .x_index = e->x + e->first[i],
        .y = (float *)op->data, .y_stride = op->nb[1], .y_index = e->y + e->first[i],
        .acts = e->acts + uma_pad(uma_kernels()->mm->acts_bytes(type, w->ne[0], e->first[i])) + 64 * (size_t)i,
    };
}

void uma_mul_mat_id_compute(const struct ggml_compute_params * params, struct ggml_tensor * op) {
    const struct uma_mm_table * table = uma_kernels()->mm;
    if (params->ith == 0) {
        uma_start_runs(uma_shares_at(params), params->nth);
        sort_rows(op, experts_at(params, op), (int32_t *)(void *)(uma_shares_at(params) + params->nth));
    }
    ggml_barrier(params->threadpool);
    const struct experts e = experts_at(params, op);
    for (int32_t i = 0; i < e.n_active; i++) {
        const struct uma_mm mm = product_of(op, &e, i);
        table->pack(&mm, params->ith, params->nth);
    }
    ggml_barrier(params->threadpool);

    const int64_t n_out = op->src[0]->ne[1], n_panels = (n_out + table->panel - 1) / table->panel;
    const int64_t wanted = (params->nth * UMA_RUNS_PER_THREAD + e.n_active - 1) / MAX(e.n_active, 1);
    const int64_t n_runs = MIN(n_panels, MAX(wanted, 1));
    const int64_t n_all = n_runs * e.n_active;
    int64_t i;
    while ((i = uma_next_run(uma_shares_at(params), n_all, params->ith, params->nth)) < n_all) {
        const struct uma_mm mm = product_of(op, &e, (int32_t)(i / n_runs));
        const int64_t run = i % n_runs, end = n_panels * (run + 1) / n_runs * table->panel;
        table->rows(&mm, n_panels * run / n_runs * table->panel, MIN(end, n_out), e.scratch);
    }
}
