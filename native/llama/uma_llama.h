// The calls over llama_context: decode, prefill in pieces, KV rows.
// The part between the cdef marks is read by the bindings generator as it stands.
#pragma once

#include "llama.h"

#include <stdbool.h>
#include <stdint.h>

#include "runtime/uma_runtime.h"
#include "sampling/uma_sampling.h"

/* cdef begin */

// -- tick.c: one decode call and one token per wanted row, in one release of the GIL
// Nothing is begun ahead here: a llama_context with an eval callback returns when all is computed.
// What a row wants. A draft's row, after the row of the token before it, gets a token only if that row's was drawn as
// the draft says: samplers see what they would see without drafts.
enum {
    UMA_WANT_TOKEN   = 1,
    UMA_WANT_LOGITS  = 2, // its token is drawn by a call of its own, before the next batch
    UMA_WANT_IF_HELD = 3, // a draft
};
enum { UMA_NOT_DRAWN = -2 };                      // instead of a token
typedef struct uma_ahead uma_ahead;
typedef struct uma_rows {
    int32_t         n;       // tokens in the batch
    int32_t         wake_fd; // written to before the call, for a reader that the GIL has to be free for; -1: none
    int32_t         goes_on; // the next call is for the same rows, each one token on, unless something happens
    uma_ahead     * ahead;   // where that call is kept if it is begun; NULL: it never is
    llama_token   * token;   // (n)
    llama_pos     * pos;     // (n)
    llama_seq_id  * seq_id;  // (n)
    int8_t        * want;    // (n) 0: nothing, or one of the above
    struct uma_sampler ** sampler; // (rows) NULL samples greedily; owned by the caller
    llama_token   * out;     // (rows) the tokens; -1 where a logit is not finite; UMA_NOT_DRAWN. NULL: none are wanted
    int64_t         begun_ns;  // when the call was; before it was asked for, maybe
    int64_t         call_ns;   // from then until its logits were there
    int64_t         sample_ns;
} uma_rows;

int32_t     uma_decode(struct llama_context * ctx, uma_rows * rows); // llama_decode's return code
// a row's of the last call
llama_token uma_decode_draw(struct llama_context * ctx, int32_t row, struct uma_sampler * sampler);
void        uma_wake(int32_t fd);            // an eventfd or a socket that does not block; -1: nothing happens

// -- ahead.c: a decode call that was begun before anybody asked for it
struct uma_ahead {
    const volatile int32_t * bell; // nonzero: something has happened, nothing is begun
    const void * of;         // the uma_forward that computes it
    uma_rows     rows;       // n 0: nothing is begun
};

uma_ahead * uma_ahead_new(int32_t n_most, const volatile int32_t * bell); // of up to this many rows; NULL: no memory
void        uma_ahead_free(uma_ahead * a);
bool        uma_ahead_is(const uma_ahead * a, const void * of, const uma_rows * rows); // whether these rows were begun
// take the rows that follow; false: none is to be begun
bool        uma_ahead_next(uma_ahead * a, const uma_rows * rows);

// -- gate.c: the eval callback of a decode context: finds the KV tensors, marks cells without computing
typedef struct uma_gate {
    int32_t mode;            // 0 open, 1 mark, 2 discover
    int32_t n_layer;         // layers whose K and V were found
    int32_t is_foreign;      // a cache write that is not a plain K or V row write was seen (recurrent, transposed V)
    struct ggml_backend * copier; // a stream of the device that holds K and V; NULL: host memory. The engine's
    struct ggml_tensor * k[512];
    struct ggml_tensor * v[512];
    // Not NULL: the rows of llama.cpp's `result_norm` (the last hidden states of the tokens that want an output) are
    // copied to it, and what follows, the product with the vocabulary, is left out. Room for hidden_max floats;
    // n_hidden: copied since it was set to 0.
    float * hidden;
    int64_t hidden_max, n_hidden;
} uma_gate;

bool    uma_gate_cb(struct ggml_tensor * t, bool ask, void * gate); // a ggml_backend_sched_eval_callback
// Append n cells to the sequence as if n tokens had been decoded; their K and V are undefined until copied in.
int32_t uma_kv_mark(struct llama_context * ctx, uma_gate * gate, llama_seq_id seq_id, llama_pos pos0, int32_t n);

// -- hidden.cpp: what prediction heads and EAGLE 3 models read from the context of the model that verifies
// Keep a layer's inputs from the next call on; n_layer: what the head of the vocabulary is given.
void    uma_hidden_keep(struct llama_context * ctx, int32_t layer);
// (tokens, n_embd) of the last call, in batch order; borrowed until the next one. NULL: there are none.
const float * uma_hidden_rows(struct llama_context * ctx, int32_t layer);

// -- heads.c: prediction heads of a model in a context of their own
typedef struct uma_heads {
    int32_t     n_embd;
    bool        has_state;   // the last call has given what it should
    llama_token token;       // the likeliest after the last call's last row; -1: none
    float     * state;       // (n_embd) the state that the heads give for that row; the caller's memory
    float     * fused;       // (n_fused, n_embd) where uma_heads_fuse writes to, while it runs
    int32_t     n_fused;
} uma_heads;

bool    uma_heads_cb(struct ggml_tensor * t, bool ask, void * heads); // the context's ggml_backend_sched_eval_callback
// Rows of a sequence from position pos0 on. states: (n, n_embd), of the positions before theirs. As llama_decode.
int32_t uma_heads_decode(struct llama_context * ctx, uma_heads * heads, const llama_token * token, const float * states,
    int32_t n, llama_pos pos0, llama_seq_id seq_id);
// EAGLE 3: make the states that its rows read of the states of several layers. states: (n, its encoder's width); fused:
// (n, n_embd). llama_encode's return code.
int32_t uma_heads_fuse(struct llama_context * ctx, uma_heads * heads, const float * states, int32_t n, float * fused);

// -- kv.c: K and V rows moved directly, in slices. Stream mode only: cell == position, row = stream * n_cells +
// position.
typedef struct uma_span {
    const uma_gate * gate;   // NULL: host bytes
    int32_t          stream;  // host bytes: the first position that they hold
    int32_t          n_cells; // cells per stream of that cache; host bytes: how many positions they hold
    char           * bytes;   // gate == NULL: layout [layer][k, v][position]
} uma_span;

int64_t uma_kv_bytes(const uma_gate * gate, int32_t n);             // of n positions, all layers, K and V
// Move positions p0..p1 in slices from *cursor on until the clock passes until_ns (at least one). 1: all is moved.
int32_t uma_kv_move(const uma_span * from, const uma_span * to, int32_t p0, int32_t p1, int32_t * cursor,
    int64_t until_ns);
// Where K and V are on a device: queue copies within it instead of waiting for each. The caller frees gate->copier, and
// may share it.
void    uma_kv_open_copier(uma_gate * gate);
// give zeroed, untouched cache pages back to the system
void    uma_kv_release_pages(const uma_gate * gate);

// -- prefill.c: llama_decode of one prompt chunk that pauses between pieces of its graph
typedef struct uma_prefill uma_prefill;
typedef struct uma_run {
    int32_t is_done;
    int32_t rc;              // llama_decode's, when is_done
    int32_t n_pieces;        // computed by this run
    double  fraction;        // of the chunk's predicted work, 0..1
    int64_t elapsed_ns;
    int64_t longest_ns;      // longest piece of this run
} uma_run;

uma_prefill * uma_prefill_new(int32_t n_tokens_max);
uma_gate    * uma_prefill_gate(uma_prefill * p);
bool          uma_prefill_cb(struct ggml_tensor * t, bool ask, void * prefill); // eval callback of the prefill context
void          uma_prefill_bind(uma_prefill * p, struct llama_context * ctx, const volatile int32_t * bell);
// Of which tokens outputs are wanted: 0 none, 1 the last, 2 all, 3 the first.
void          uma_prefill_start(uma_prefill * p, const llama_token * token, int32_t n, llama_pos pos0, int32_t want);
// Several sequences' tokens at once, with outputs of all: whole inputs of an encoder.
void          uma_prefill_start_rows(uma_prefill * p, const llama_token * token, const llama_pos * pos,
    const llama_seq_id * seq_id, int32_t n);
void          uma_prefill_run(uma_prefill * p, int64_t until_ns, int64_t quantum_ns, int32_t min_pieces, uma_run * out);
// leave the paused chunk; its cells are the caller's to remove
void          uma_prefill_cancel(uma_prefill * p);
void          uma_prefill_free(uma_prefill * p);

/* cdef end */

// Whether the tensor holds the hidden states that the gate wants; copied once they are computed (`ask` false).
bool uma_gate_takes_hidden(uma_gate * gate, struct ggml_tensor * t, bool ask);

// -- tick.c: the tokens of all rows that want one
typedef llama_token (*uma_draw)(void * logits, int32_t row, uma_sampler * sampler);
void uma_draw_rows(const uma_rows * rows, uma_draw draw, void * logits);

#include "runtime/guard.h"
