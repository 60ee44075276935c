// Fills a graph's inputs from a batch and makes one decode call, as one C function, so that the GIL is released only
// once.
#include "graph/uma_graph.h"

#include "ggml-backend.h"
#include "ggml-impl.h"

#include <math.h>

enum { PAGE = 64 };

// ggml would abort the process on a token without an embedding.
static bool are_tokens_known(const uma_forward * f, const uma_rows * rows) {
    for (int32_t i = 0; i < rows->n; i++) {
        if (rows->token[i] < 0 || rows->token[i] >= f->n_vocab) {
            return false;
        }
    }
    return true;
}

static bool plan(uma_forward * f, const uma_rows * rows) {
    if (f->mask) {
        uma_mask_fill(f->mask, rows, f->pages, f->n_pages_seq);
        return true;
    }
    for (int32_t i = 0; i < f->n_plans; i++) {
        if (!uma_paged_plan(f->plans[i], rows, f->pages, f->n_pages_seq)) {
            return false;
        }
    }
    return true;
}

static void fill_cells(const uma_cells * c, int64_t page, int64_t row, int32_t at) {
    for (int32_t h = 0; h < c->n_head; h++) {
        c->at[row * c->n_head + h] = page * c->page_rows + (int64_t) h * PAGE + at;
    }
}

bool uma_forward_fill(uma_forward * f, const uma_rows * rows) {
    int32_t n_out = 0;
    if (f->n_inputs) {
        ggml_backend_synchronize(f->backend); // an abandoned chunk may still be computing
    }
    for (int32_t i = 0; i < rows->n; i++) {
        const int32_t * pages = f->pages + (int64_t) rows->seq_id[i] * f->n_pages_seq;
        f->token[i] = rows->token[i];
        if (f->pos) { // a model may have no rotary positions
            f->pos[i] = rows->pos[i];
        }
        for (int32_t c = 0; c < f->n_cells; c++) {
            fill_cells(&f->cells[c], pages[rows->pos[i] / PAGE], i, rows->pos[i] % PAGE);
        }
        if (rows->want[i] && f->out_id) {
            f->out_id[n_out++] = i;
        }
    }
    if (!plan(f, rows)) {
        return false;
    }
    for (int32_t i = 0; i < f->n_inputs; i++) {
        const uma_input * in = &f->inputs[i];
        ggml_backend_tensor_set_async(f->backend, in->tensor, in->data, 0, ggml_nbytes(in->tensor));
    }
    return true;
}

void uma_forward_fetch(uma_forward * f) {
    if (f->result) {
        ggml_backend_tensor_get_async(f->backend, f->result, f->logits, 0, ggml_nbytes(f->result));
        ggml_backend_synchronize(f->backend);
    }
    f->has_logits = 1;
}

// Fetches each output's best token, and that token's logit to its place in `logits`: bytes instead of megabytes.
static void fetch_best(uma_forward * f) {
    const int32_t n_out = (int32_t) f->best->ne[0];
    ggml_backend_tensor_get_async(f->backend, f->best, f->best_id, 0, ggml_nbytes(f->best));
    ggml_backend_synchronize(f->backend);
    for (int32_t row = 0; row < n_out; row++) {
        const int32_t id = f->best_id[row];
        if (id >= 0 && id < f->n_vocab) {
            const size_t at = (size_t) row * f->n_vocab + id;
            ggml_backend_tensor_get_async(f->backend, f->result, f->logits + at, at * sizeof(float), sizeof(float));
        }
    }
}

// Gives a graph an id, which it keeps when it is computed again. ggml's CUDA backend, which records graphs, then need
// not compare it node by node.
static void name_graph(struct ggml_cgraph * graph) {
    static _Atomic uint64_t n_named = 0; // a model being loaded computes beside the one in service
    if (!graph->uid) {
        graph->uid = ++n_named;
    }
}

static enum ggml_status begin(uma_forward * f, const uma_rows * rows) {
    if (!uma_forward_fill(f, rows)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    name_graph(f->graph);
    f->has_logits = 0;
    return ggml_backend_graph_compute_async(f->backend, f->graph);
}

static void collect(uma_forward * f, bool is_greedy) {
    if (is_greedy && f->best) {
        fetch_best(f);
    } else {
        uma_forward_fetch(f);
    }
    ggml_backend_synchronize(f->backend);
}

void uma_forward_sync(uma_ahead * ahead) {
    if (ahead && ahead->rows.n) {
        ggml_backend_synchronize(((const uma_forward *) ahead->of)->backend);
        ahead->rows.n = 0;
    }
}

// The graph reads one span of cells; the next rows may need another.
static bool is_within(const uma_forward * f, const uma_rows * rows) {
    int64_t span[2];
    uma_mask_span(rows, f->pages, f->n_pages_seq, f->mask->n_pool, span);
    return span[0] == f->mask->first && span[1] == f->mask->n_cells;
}

void uma_forward_begin_next(uma_forward * f, uma_rows * rows) {
    uma_ahead * ahead = rows->ahead;
    uma_wake(rows->wake_fd);
    if (f->mask && uma_ahead_next(ahead, rows)) {
        ahead->of = f;
        if (!is_within(f, &ahead->rows)) {
            ahead->rows.n = 0;
        } else if (begin(f, &ahead->rows) != GGML_STATUS_SUCCESS) {
            uma_forward_sync(ahead);
        }
    }
}

static bool are_greedy(const uma_rows * rows) {
    for (int32_t i = 0, row = 0; i < rows->n; i++) {
        if (rows->want[i] && !uma_takes_best(rows->sampler[row++])) {
            return false;
        }
    }
    return true;
}

static llama_token draw(void * forward, int32_t row, uma_sampler * sampler) {
    uma_forward * f = forward;
    float * logits = f->logits + (int64_t) row * f->n_vocab;
    if (!f->has_logits && !(sampler && sampler->forced >= 0)) { // a forced token needs no logits
        const int32_t id = f->best_id[row];
        if (id < 0 || id >= f->n_vocab || !isfinite(logits[id])) {
            return -1;
        }
        if (uma_allows(sampler, id)) {
            return id;
        }
        uma_forward_fetch(f); // the device finds only the best token
    }
    return uma_sample(logits, f->n_vocab, sampler);
}

llama_token uma_forward_draw(uma_forward * f, int32_t row, uma_sampler * sampler) { return draw(f, row, sampler); }

int32_t uma_forward_decode(uma_forward * f, uma_rows * rows) {
    uma_wake(rows->wake_fd);
    rows->call_ns = rows->sample_ns = 0;
    const bool is_begun = uma_ahead_is(rows->ahead, f, rows);
    if (is_begun) {
        rows->ahead->rows.n = 0;
    } else {
        uma_forward_sync(rows->ahead);
    }
    const int64_t t0 = is_begun ? rows->ahead->rows.begun_ns : uma_now_ns();
    rows->begun_ns = t0;
    if (!are_tokens_known(f, rows)) {
        return UMA_FORWARD_BAD_TOKEN;
    }
    const enum ggml_status status = is_begun ? GGML_STATUS_SUCCESS : begin(f, rows);
    if (status == GGML_STATUS_SUCCESS) {
        collect(f, !f->n_hidden && are_greedy(rows));
    }
    const int64_t t1 = uma_now_ns();
    rows->call_ns = t1 - t0;
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    if (f->n_hidden) {
        return 0;
    }
    uma_draw_rows(rows, draw, f);
    rows->sample_ns = uma_now_ns() - t1;
    return 0;
}
