// MUL_MAT of f32 activations by one weight matrix: all threads pack the activations, then each computes runs of weight
// rows.
#include "runs.h"

static int64_t n_rows_of(const struct ggml_tensor * op) { return op->ne[1] * op->ne[2] * op->ne[3]; }

bool uma_mul_mat_is_ours(const struct ggml_tensor * op) {
    const struct ggml_tensor * w = op->src[0];
    const struct ggml_tensor * x = op->src[1];
    if (uma_type_of(w->type) == UMA_N_TYPES || x->type != GGML_TYPE_F32 || op->type != GGML_TYPE_F32) return false;
    if (ggml_get_op_params_i32(op, 1) == GGML_HINT_SRC0_IS_HADAMARD) return false;
    if (w->ne[2] != 1 || w->ne[3] != 1 || !uma_is_plain(x)) return false;
    if (!uma_can_read(w, n_rows_of(op))) return false;
    const bool is_one_batch = x->ne[2] * x->ne[3] == 1;
    return is_one_batch || (ggml_is_contiguous(x) && ggml_is_contiguous(op));
}

size_t uma_mul_mat_work_size(int n_threads, const struct ggml_tensor * op) {
    const struct uma_mm_table * mm = uma_kernels()->mm;
    const size_t acts = mm->acts_bytes(uma_type_of(op->src[0]->type), op->src[0]->ne[0], n_rows_of(op));
    return 64 + uma_pad(acts) + uma_shares_bytes(n_threads)
        + (size_t)n_threads * uma_pad(mm->scratch_bytes(n_rows_of(op)));
}

void uma_mul_mat_compute(const struct ggml_compute_params * params, struct ggml_tensor * op) {
    const struct uma_mm_table * table = uma_kernels()->mm;
    const struct ggml_tensor * w = op->src[0];
    const struct ggml_tensor * x = op->src[1];
    struct uma_share * shares = uma_shares_at(params);
    char * work = (char *)(shares + params->nth);
    const struct uma_mm mm = {
        .type = uma_type_of(w->type), .n_out = w->ne[1], .n_in = w->ne[0], .n_rows = n_rows_of(op),
        .w = w->data, .w_stride = w->nb[1],
        .x = (const float *)x->data, .x_stride = x->nb[1],
        .y = (float *)op->data, .y_stride = op->nb[1],
        .acts = work, .is_repacked = uma_is_repacked(w),
    };
    char * scratch = work + uma_pad(table->acts_bytes(mm.type, mm.n_in, mm.n_rows))
        + (size_t)params->ith * uma_pad(table->scratch_bytes(mm.n_rows));
    if (params->ith == 0) uma_start_runs(shares, params->nth);
    table->pack(&mm, params->ith, params->nth);
    ggml_barrier(params->threadpool);

    const int64_t n_panels = (mm.n_out + table->panel - 1) / table->panel;
    const int64_t n_runs = params->nth == 1 ? 1 : MIN(n_panels, (int64_t)params->nth * UMA_RUNS_PER_THREAD);
    int64_t run;
    while ((run = uma_next_run(shares, n_runs, params->ith, params->nth)) < n_runs) {
        const int64_t end = n_panels * (run + 1) / n_runs * table->panel;
        table->rows(&mm, n_panels * run / n_runs * table->panel, MIN(end, mm.n_out), scratch);
    }
}
