// One prompt chunk whose llama_decode pauses between pieces of its graph.
//
// The prefill context's eval callback cuts the graph where the predicted work since the last cut reaches the
// wanted quantum. ggml computes a piece, calls back, and there the fiber may leave: llama_decode stays on its
// own stack, half done, until it is entered again. Other contexts compute meanwhile. What a piece costs is
// learnt by kind of operation (nanoseconds per unit of work), so nothing is assumed about an architecture.
#include "fiber.h"
#include "uma.h"

#include <stdlib.h>
#include <string.h>

enum kind { MATMUL, GEMV, EXPERTS, ATTENTION, OTHER, N_KINDS };
enum { GEMV_ROWS = 4 }; // up to so many rows a matmul costs its weights' bytes, not its arithmetic
static const double ALMOST = 0.99; // most that a chunk under way can have done: its total is an estimate

struct uma_prefill {
    uma_fiber *             fiber;
    struct llama_context *  ctx;
    const volatile int32_t * bell;     // nonzero: leave at the next cut
    uma_gate                gate;

    // the chunk
    int32_t        n, capacity;
    llama_token  * token;
    llama_pos    * pos;
    int32_t      * n_seq_id;
    llama_seq_id   zero;               // a prefill context has one sequence
    llama_seq_id ** seq_id;
    int8_t       * want;
    int32_t        rc;
    bool           is_done, is_cancelled;

    // what pieces cost
    double  ns_per_work[N_KINDS];
    int64_t n_seen[N_KINDS];
    double  piece[N_KINDS];            // predicted ns by kind since the last cut
    double  heaviest;                  // predicted ns of the heaviest single node of this chunk
    double  done_ns, total_ns;         // predicted work of this chunk; total is the previous chunk's, scaled
    double  last_total_ns;
    int32_t last_n;

    // this run
    int64_t   until_ns, quantum_ns, t_piece;
    int32_t   min_pieces;
    uma_run * run;
};

static enum kind kind_of(const struct ggml_tensor * t) {
    switch (t->op) {
        case GGML_OP_MUL_MAT:        return t->ne[1] <= GEMV_ROWS ? GEMV : MATMUL;
        case GGML_OP_MUL_MAT_ID:     return EXPERTS;
        case GGML_OP_FLASH_ATTN_EXT: return ATTENTION;
        default:                     return OTHER;
    }
}

static double work_of(const struct ggml_tensor * t, enum kind kind) {
    switch (kind) {
        case MATMUL:
        case EXPERTS:   return (double) ggml_nelements(t) * t->src[0]->ne[0];
        case GEMV:      return (double) ggml_nbytes(t->src[0]);
        case ATTENTION: return (double) ggml_nelements(t->src[0]) * t->src[1]->ne[1] * 2;
        default:        return (double) ggml_nelements(t);
    }
}

static double sum(const double * x) {
    double s = 0;
    for (int i = 0; i < N_KINDS; i++) {
        s += x[i];
    }
    return s;
}

// Spread a piece's error over the kinds it was predicted from, by their shares; bounded, because one
// preempted piece may take ten times its time.
static void learn(uma_prefill * p, int64_t elapsed_ns) {
    const double predicted = sum(p->piece);
    if (predicted <= 0) {
        return;
    }
    double ratio = elapsed_ns / predicted;
    for (int i = 0; i < N_KINDS; i++) {
        const double share = p->piece[i] / predicted;
        if (share < 0.2) {
            continue;
        }
        const bool is_new = p->n_seen[i]++ < 8;
        const double low = is_new ? 0.02 : 0.7, high = is_new ? 50.0 : 1.4;
        const double bounded = ratio < low ? low : ratio > high ? high : ratio;
        p->ns_per_work[i] *= 1.0 + (is_new ? 0.7 : 0.1) * share * (bounded - 1.0);
    }
}

static void end_piece(uma_prefill * p) {
    const int64_t elapsed = uma_now_ns() - p->t_piece;
    learn(p, elapsed);
    p->done_ns += sum(p->piece);
    memset(p->piece, 0, sizeof(p->piece));
    p->run->n_pieces++;
    if (elapsed > p->run->longest_ns) {
        p->run->longest_ns = elapsed;
    }
}

static bool must_leave(const uma_prefill * p) {
    if (p->run->n_pieces < p->min_pieces) {
        return false;
    }
    return *p->bell != 0 || uma_now_ns() + p->quantum_ns > p->until_ns;
}

bool uma_prefill_cb(struct ggml_tensor * t, bool ask, void * user) {
    uma_prefill * p = user;
    if (p->gate.mode != 0 || !p->run) {
        return uma_gate_cb(t, ask, &p->gate);
    }
    if (!ask) {
        end_piece(p);
        if (must_leave(p)) {
            uma_fiber_leave(p->fiber);
        }
        p->t_piece = uma_now_ns();
        return !p->is_cancelled;
    }
    const enum kind kind = kind_of(t);
    const double ns = work_of(t, kind) * p->ns_per_work[kind];
    p->piece[kind] += ns;
    p->heaviest = ns > p->heaviest ? ns : p->heaviest;
    return sum(p->piece) + p->heaviest > p->quantum_ns && kind != OTHER;
}

static void body(void * user) {
    uma_prefill * p = user;
    for (;;) {
        struct llama_batch batch = {
            .n_tokens = p->n, .token = p->token, .pos = p->pos,
            .n_seq_id = p->n_seq_id, .seq_id = p->seq_id, .logits = p->want,
        };
        p->rc = llama_decode(p->ctx, batch);
        llama_synchronize(p->ctx);
        p->is_done = true;
        uma_fiber_leave(p->fiber);
    }
}

uma_prefill * uma_prefill_new(int32_t n_tokens_max) {
    uma_prefill * p = calloc(1, sizeof(*p));
    if (!p) {
        return NULL;
    }
    const size_t n = (size_t) n_tokens_max;
    p->capacity = n_tokens_max;
    p->token    = calloc(n, sizeof(*p->token));
    p->pos      = calloc(n, sizeof(*p->pos));
    p->n_seq_id = calloc(n, sizeof(*p->n_seq_id));
    p->seq_id   = calloc(n, sizeof(*p->seq_id));
    p->want     = calloc(n, sizeof(*p->want));
    p->fiber    = uma_fiber_new(body, p);
    p->is_done  = true;
    if (!p->token || !p->pos || !p->n_seq_id || !p->seq_id || !p->want || !p->fiber) {
        uma_prefill_free(p);
        return NULL;
    }
    for (size_t i = 0; i < n; i++) {
        p->n_seq_id[i] = 1;
        p->seq_id[i]   = &p->zero;
    }
    // First guesses, soon replaced: 50 G multiply-adds/s, 20 GB/s, 1 element/ns.
    p->ns_per_work[MATMUL]    = p->ns_per_work[EXPERTS] = p->ns_per_work[ATTENTION] = 0.02;
    p->ns_per_work[GEMV]      = 0.05;
    p->ns_per_work[OTHER]     = 1.0;
    return p;
}

uma_gate * uma_prefill_gate(uma_prefill * p) {
    return &p->gate;
}

void uma_prefill_bind(uma_prefill * p, struct llama_context * ctx, const volatile int32_t * bell) {
    p->ctx  = ctx;
    p->bell = bell;
}

void uma_prefill_start(uma_prefill * p, const llama_token * token, int32_t n, llama_pos pos0, bool want_last) {
    p->n = n;
    for (int32_t i = 0; i < n; i++) {
        p->token[i] = token[i];
        p->pos[i]   = pos0 + i;
        p->want[i]  = want_last && i == n - 1;
    }
    p->is_done      = false;
    p->is_cancelled = false;
    p->heaviest     = 0;
    p->done_ns      = 0;
    p->total_ns     = p->last_n > 0 ? p->last_total_ns * n / p->last_n : 0;
    memset(p->piece, 0, sizeof(p->piece));
}

void uma_prefill_run(uma_prefill * p, int64_t until_ns, int64_t quantum_ns, int32_t min_pieces, uma_run * out) {
    const int64_t t0 = uma_now_ns();
    memset(out, 0, sizeof(*out));
    p->run        = out;
    p->until_ns   = until_ns;
    p->quantum_ns = quantum_ns;
    p->min_pieces = min_pieces;
    p->t_piece    = t0;
    uma_fiber_enter(p->fiber);
    if (p->is_done) {
        end_piece(p);
        p->last_total_ns = p->done_ns;
        p->last_n        = p->n;
    }
    p->run = NULL;
    out->is_done    = p->is_done;
    out->rc         = p->rc;
    out->elapsed_ns = uma_now_ns() - t0;
    out->fraction   = p->is_done ? 1.0 : p->done_ns < ALMOST * p->total_ns ? p->done_ns / p->total_ns : ALMOST;
}

void uma_prefill_cancel(uma_prefill * p) {
    const double  total_ns = p->last_total_ns; // a cancelled chunk's total says nothing
    const int32_t n        = p->last_n;
    uma_run       ignored;
    p->is_cancelled = true;
    while (!p->is_done) {
        uma_prefill_run(p, 0, 1, 1, &ignored); // tiny quantum: every node is a cut, the first one stops its split
    }
    p->last_total_ns = total_ns;
    p->last_n        = n;
}

void uma_prefill_free(uma_prefill * p) {
    if (!p) {
        return;
    }
    uma_fiber_free(p->fiber);
    free(p->token);
    free(p->pos);
    free(p->n_seq_id);
    free(p->seq_id);
    free(p->want);
    free(p);
}
