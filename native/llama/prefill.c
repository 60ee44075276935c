// One prompt chunk whose llama_decode pauses between pieces of its graph.
//
// The prefill context's eval callback cuts the graph where the predicted work since the last cut reaches the wanted
// quantum. ggml computes a piece and calls back. There the fiber may leave: llama_decode stays on its own stack, half
// done, until it is entered again, and other contexts may compute in between. The cost of a piece is learned by kind of
// operation (nanoseconds per unit of work), so nothing is assumed about an architecture.
#include "fiber.h"
#include "graph/pieces.h"
#include "llama/uma_llama.h"

#include <stdlib.h>
#include <string.h>

struct uma_prefill {
    uma_fiber *             fiber;
    struct llama_context *  ctx;
    const volatile int32_t * interrupt;     // nonzero: leave at the next cut
    uma_gate                gate;

    // the chunk
    int32_t        n, capacity;
    llama_token  * token;
    llama_pos    * pos;
    int32_t      * n_seq_id;
    llama_seq_id * seq;                // a prefill context has one sequence, number 0; an encoder's has several
    llama_seq_id ** seq_id;
    int8_t       * want;
    int32_t        rc;
    bool           is_begun, is_done, is_cancelled, is_at_head;

    uma_pieces     pieces;

    // this run
    int64_t   until_ns, quantum_ns, t_piece;
    int32_t   min_pieces;
    uma_run * run;
};

static void end_piece(uma_prefill * p) {
    const int64_t elapsed = uma_now_ns() - p->t_piece;
    uma_pieces_end(&p->pieces, elapsed);
    p->run->n_pieces++;
    if (elapsed > p->run->longest_ns) {
        p->run->longest_ns = elapsed;
    }
}

static bool must_leave(const uma_prefill * p) {
    if (p->run->n_pieces < p->min_pieces) {
        return false;
    }
    const int64_t head = p->is_at_head ? (int64_t) uma_pieces_head_ns(&p->pieces) : 0;
    return *p->interrupt != 0 || uma_now_ns() + (head > p->quantum_ns ? head : p->quantum_ns) > p->until_ns;
}

bool uma_prefill_cb(struct ggml_tensor * t, bool ask, void * user) {
    uma_prefill * p = user;
    if (p->gate.mode != 0 || !p->run) {
        return uma_gate_cb(t, ask, &p->gate);
    }
    if (!ask) {
        end_piece(p);
        const bool is_end = uma_gate_takes_hidden(&p->gate, t, false);
        if (!is_end && must_leave(p)) {
            uma_fiber_leave(p->fiber);
        }
        p->t_piece = uma_now_ns();
        return !p->is_cancelled && !is_end;
    }
    const bool is_end = uma_gate_takes_hidden(&p->gate, t, true);
    // the node before the product with the output matrix, which may take longer than any other piece
    p->is_at_head = !is_end && p->want[p->n - 1] && strcmp(t->name, "result_norm") == 0;
    return uma_pieces_add(&p->pieces, t, p->quantum_ns) || p->is_at_head || is_end;
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
    p->seq      = calloc(n, sizeof(*p->seq));
    p->seq_id   = calloc(n, sizeof(*p->seq_id));
    p->want     = calloc(n, sizeof(*p->want));
    p->fiber    = uma_fiber_new(body, p);
    p->is_done  = true;
    if (!p->token || !p->pos || !p->n_seq_id || !p->seq || !p->seq_id || !p->want || !p->fiber) {
        uma_prefill_free(p);
        return NULL;
    }
    for (size_t i = 0; i < n; i++) {
        p->n_seq_id[i] = 1;
        p->seq_id[i]   = p->seq + i;
    }
    uma_pieces_init(&p->pieces);
    return p;
}

uma_gate * uma_prefill_gate(uma_prefill * p) {
    return &p->gate;
}

void uma_prefill_bind(uma_prefill * p, struct llama_context * ctx, const volatile int32_t * interrupt) {
    p->ctx  = ctx;
    p->interrupt = interrupt;
}

enum { NONE, LAST, ALL, FIRST };

static bool is_wanted(int32_t want, int32_t i, int32_t n) {
    return want == ALL || (want == LAST && i == n - 1) || (want == FIRST && i == 0);
}

static void begin(uma_prefill * p, int32_t n) {
    p->n            = n;
    p->is_begun     = false;
    p->is_done      = false;
    p->is_cancelled = false;
    uma_pieces_begin(&p->pieces, n);
}

void uma_prefill_start(uma_prefill * p, const llama_token * token, int32_t n, llama_pos pos0, int32_t want) {
    for (int32_t i = 0; i < n; i++) {
        p->token[i] = token[i];
        p->pos[i]   = pos0 + i;
        p->seq[i]   = 0;
        p->want[i]  = is_wanted(want, i, n);
    }
    begin(p, n);
}

void uma_prefill_start_rows(uma_prefill * p, const llama_token * token, const llama_pos * pos,
    const llama_seq_id * seq_id, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        p->token[i] = token[i];
        p->pos[i]   = pos[i];
        p->seq[i]   = seq_id[i];
        p->want[i]  = 1;
    }
    begin(p, n);
}

void uma_prefill_run(uma_prefill * p, int64_t until_ns, int64_t quantum_ns, int32_t min_pieces, uma_run * out) {
    const int64_t t0 = uma_now_ns();
    memset(out, 0, sizeof(*out));
    p->run        = out;
    p->until_ns   = until_ns;
    p->quantum_ns = quantum_ns;
    p->min_pieces = min_pieces;
    p->t_piece    = t0;
    p->is_begun   = true;
    uma_fiber_enter(p->fiber);
    if (p->is_done) {
        end_piece(p);
        if (!p->is_cancelled) { // a cancelled chunk's total has no meaning
            uma_pieces_finish(&p->pieces, p->n);
        }
    }
    p->run = NULL;
    out->is_done    = p->is_done;
    out->rc         = p->rc;
    out->elapsed_ns = uma_now_ns() - t0;
    out->fraction   = p->is_done ? 1.0 : uma_pieces_fraction(&p->pieces);
}

void uma_prefill_cancel(uma_prefill * p) {
    uma_run ignored;
    p->is_cancelled = true;
    p->is_done |= !p->is_begun; // not run: what precedes it may not be in the cache yet
    while (!p->is_done) {
        uma_prefill_run(p, 0, 1, 1, &ignored); // tiny quantum: every node is a cut, the first one stops its split
    }
}

void uma_prefill_free(uma_prefill * p) {
    if (!p) {
        return;
    }
    uma_fiber_free(p->fiber);
    free(p->token);
    free(p->pos);
    free(p->n_seq_id);
    free(p->seq);
    free(p->seq_id);
    free(p->want);
    free(p);
}
