// Calls on a llama_context: decode, prefill in pieces, KV rows.
// The part between the cdef marks is read by the bindings generator as it stands.
#pragma once

#include "llama.h"

#include <stdbool.h>
#include <stdint.h>

#include "runtime/uma_runtime.h"
#include "sampling/uma_sampling.h"

/* cdef begin */

// -- tick.c: one decode call and one token per wanted row, in one release of the GIL
// Nothing is started ahead here: a llama_context with an eval callback returns when everything is computed.
// What a row wants. A draft token's row gets a token only if the row before it drew the draft token. So samplers see
// what they would see without drafts.
enum {
    UMA_WANT_TOKEN       = 1,
    UMA_WANT_LOGITS      = 2, // its token is drawn by a separate call, before the next batch
    UMA_WANT_IF_ACCEPTED = 3, // a draft's row
};
enum { UMA_NOT_DRAWN = -2 };                      // instead of a token
typedef struct uma_ahead uma_ahead;
typedef struct uma_rows {
    int32_t         n;       // tokens in the batch
    int32_t         wake_fd; // written to before the call, to wake a reader that needs the GIL; -1: none
    int32_t         starts_next; // the next call is for the same sequences, one token further, unless something happens
    uma_ahead     * ahead;   // holds that call if it is begun; NULL: it never is
    llama_token   * token;   // (n)
    llama_pos     * pos;     // (n)
    llama_seq_id  * seq_id;  // (n)
    int8_t        * want;    // (n) 0: nothing, or one of the above
    struct uma_sampler ** sampler; // (rows) NULL samples greedily; owned by the caller
    llama_token   * out;     // (rows) the tokens; -1 where a logit is not finite; UMA_NOT_DRAWN. NULL: none are wanted
    int64_t         begun_ns;  // when the call began; if it was started ahead, before it was asked for
    int64_t         call_ns;   // from begun_ns until its logits were available
    int64_t         sample_ns;
} uma_rows;

int32_t     uma_decode(struct llama_context * ctx, uma_rows * rows); // llama_decode's return code
// for a row of the last call
llama_token uma_decode_draw(struct llama_context * ctx, int32_t row, struct uma_sampler * sampler);
void        uma_wake(int32_t fd);            // an eventfd or a non-blocking socket; -1: does nothing

// -- ahead.c: a decode call that is begun before Python asks for it
struct uma_ahead {
    const volatile int32_t * interrupt; // nonzero: something has happened, so nothing is begun
    const void * of;         // the uma_forward that computes it
    uma_rows     rows;       // n = 0: no call is begun
};

// of up to `n_most` rows; NULL: no memory
uma_ahead * uma_ahead_new(int32_t n_most, const volatile int32_t * interrupt);
void        uma_ahead_free(uma_ahead * a);
bool        uma_ahead_is(const uma_ahead * a, const void * of, const uma_rows * rows); // whether this call was begun
// takes the rows of the next call; false: it is not to be begun
bool        uma_ahead_next(uma_ahead * a, const uma_rows * rows);

// -- gate.c: the eval callback of a decode context: finds the KV tensors, marks cells without computing
typedef struct uma_gate {
    int32_t mode;            // 0 open, 1 mark, 2 discover
    int32_t n_layer;         // layers whose K and V were found
    int32_t is_foreign;      // a cache write that is not a plain K or V row write was seen (recurrent, transposed V)
    struct ggml_backend * copier; // the engine's stream on the device that holds K and V; NULL: host memory
    struct ggml_tensor * k[512];
    struct ggml_tensor * v[512];
    // Not NULL: the rows of llama.cpp's `result_norm` (the last hidden states of the tokens that want an output) are
    // copied to it, and the product with the output matrix after them is left out. It has room for hidden_max floats;
    // n_hidden: floats copied since it was set to 0.
    float * hidden;
    int64_t hidden_max, n_hidden;
} uma_gate;

bool    uma_gate_cb(struct ggml_tensor * t, bool ask, void * gate); // a ggml_backend_sched_eval_callback
// Append n cells to the sequence as if n tokens had been decoded; their K and V are undefined until copied in.
int32_t uma_kv_mark(struct llama_context * ctx, uma_gate * gate, llama_seq_id seq_id, llama_pos pos0, int32_t n);

// -- hidden.cpp: what prediction heads and EAGLE 3 models read from the context of the model that verifies
// Keep a layer's inputs from the next call on; n_layer: what the output matrix is multiplied with.
void    uma_hidden_keep(struct llama_context * ctx, int32_t layer);
// (tokens, n_embd) of the last call, in batch order, valid until the next call. NULL: there are none.
const float * uma_hidden_rows(struct llama_context * ctx, int32_t layer);

// -- heads.c: prediction heads of a model in a context of their own
typedef struct uma_heads {
    int32_t     n_embd;
    bool        has_state;   // the last call gave the state or the fused rows
    llama_token token;       // the likeliest token after the last row of the last call; -1: none
    float     * state;       // (n_embd) the heads' state for that row; the caller's memory
    float     * fused;       // (n_fused, n_embd) where uma_heads_fuse writes while it runs
    int32_t     n_fused;
} uma_heads;

bool    uma_heads_cb(struct ggml_tensor * t, bool ask, void * heads); // the context's ggml_backend_sched_eval_callback
// Decode rows of a sequence from position pos0 on. states: (n, n_embd), each of the position before its row. Returns
// llama_decode's return code.
int32_t uma_heads_decode(struct llama_context * ctx, uma_heads * heads, const llama_token * token, const float * states,
    int32_t n, llama_pos pos0, llama_seq_id seq_id);
// EAGLE 3: compute the states that its rows read from the states of several layers. states: (n, its encoder's width);
// fused: (n, n_embd). Returns llama_encode's return code.
int32_t uma_heads_fuse(struct llama_context * ctx, uma_heads * heads, const float * states, int32_t n, float * fused);

// -- kv.c: moves K and V rows directly, in slices. Stream mode only: cell == position, row = stream * n_cells +
// position.
typedef struct uma_span {
    const uma_gate * gate;   // NULL: host bytes
    int32_t          stream;  // host bytes: the first position that they hold
    int32_t          n_cells; // cells per stream of that cache; host bytes: how many positions they hold
    char           * bytes;   // gate == NULL: layout [layer][k, v][position]
} uma_span;

int64_t uma_kv_bytes(const uma_gate * gate, int32_t n);             // of n positions, all layers, K and V
// Move positions p0..p1 in slices from *cursor on until the clock passes until_ns (at least one). 1: all are moved.
int32_t uma_kv_move(const uma_span * from, const uma_span * to, int32_t p0, int32_t p1, int32_t * cursor,
    int64_t until_ns);
// If K and V are on a device, queue copies within it instead of waiting for each. The caller frees gate->copier, and
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
void          uma_prefill_bind(uma_prefill * p, struct llama_context * ctx, const volatile int32_t * interrupt);
// want: the tokens whose outputs are wanted: 0 none, 1 the last, 2 all, 3 the first.
void          uma_prefill_start(uma_prefill * p, const llama_token * token, int32_t n, llama_pos pos0, int32_t want);
// Tokens of several sequences at once, all with outputs: whole inputs of an encoder.
void          uma_prefill_start_rows(uma_prefill * p, const llama_token * token, const llama_pos * pos,
    const llama_seq_id * seq_id, int32_t n);
void          uma_prefill_run(uma_prefill * p, int64_t until_ns, int64_t quantum_ns, int32_t min_pieces, uma_run * out);
// abandons the paused chunk; the caller removes its cells
void          uma_prefill_cancel(uma_prefill * p);
void          uma_prefill_free(uma_prefill * p);

/* cdef end */

// Returns whether the tensor holds the hidden states that the gate wants. Copies them once they are computed (`ask`
// false).
bool uma_gate_takes_hidden(uma_gate * gate, struct ggml_tensor * t, bool ask);

// -- tick.c: the tokens of all rows that want one
typedef llama_token (*uma_draw)(void * logits, int32_t row, uma_sampler * sampler);
void uma_draw_rows(const uma_rows * rows, uma_draw draw, void * logits);

#include "runtime/guard.h"
