// Our own C: what cannot be done, or not fast enough, through llama.h from Python.
// The part between the cdef marks is read by the bindings generator as it stands.
#pragma once

#include "llama.h"

#include <stdbool.h>
#include <stdint.h>

/* cdef begin */

// -- clock.c: the monotonic clock that every deadline here counts on (Python: time.monotonic_ns)
int64_t uma_now_ns(void);

// -- gentle.c: a process of one thread that yields of itself
void uma_gentle_begin(const uint8_t * wanted, int64_t run_ns, int64_t pause_ns); // from now on in turns, while *wanted is not 0
void uma_gentle_end(void);                                                       // it has nothing to do: no timer runs

// -- log.c: llama.cpp's log lines, kept in a ring until Python drains them
void    uma_log_install(int32_t min_level);                        // a ggml_log_level; lines below it are dropped at once
int32_t uma_log_take(char * line, int32_t capacity, int32_t * level); // bytes of the oldest line, 0: none left
int64_t uma_log_lost(void);                                        // lines overwritten before they were taken

// -- guard.cpp: calls that fail where llama.cpp throws, or asserts (guard.h says which)
enum { UMA_BROKEN = -1000 }; // in place of a return code: something was thrown in the middle of a computation
bool         uma_guard_reserve(void);                              // set memory aside for calls that must not fail; false: there is none
void         uma_guard_install(void);                              // once, before anything is loaded
bool         uma_guard_is_short(void);                             // whether the last one of this thread that loads failed for want of memory
const char * uma_guard_message(void);                              // what was thrown past llama.cpp in it; "": nothing

// -- threads.c: tried out, with stacks of the usual size
bool         uma_threads_fit(int32_t n);                           // whether so many more threads can run at once

// -- abort.c: an abort callback that reads one int (Python callbacks inside compute wait for the GIL at every node)
bool uma_abort_cb(void * flag);                                    // flag: int32_t *, nonzero aborts

// -- tick.c: one decode call and one token per wanted row, in one release of the GIL
// Nothing is begun ahead here: a llama_context with an eval callback returns when all is computed.
// What a row wants. A draft's row, behind the row of the token before it, gets a token only if that row's was drawn as the draft
// says: samplers see what they would see without drafts.
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
    uma_ahead     * ahead;   // where that call is kept if it is begun at once; NULL: it is not
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
llama_token uma_decode_draw(struct llama_context * ctx, int32_t row, struct uma_sampler * sampler); // a row's of the last call
void        uma_wake(int32_t fd);            // an eventfd or a socket that does not block; -1: nothing happens

// -- ahead.c: a decode call that was begun before anybody asked for it
struct uma_ahead {
    const volatile int32_t * bell; // nonzero: something has happened, nothing is begun
    const void * of;         // the uma_forward that computes it
    uma_rows     rows;       // n 0: nothing is begun
};

uma_ahead * uma_ahead_new(int32_t n_most, const volatile int32_t * bell); // of up to so many rows; NULL: no memory
void        uma_ahead_free(uma_ahead * a);
bool        uma_ahead_is(const uma_ahead * a, const void * of, const uma_rows * rows); // whether these rows were begun
bool        uma_ahead_next(uma_ahead * a, const uma_rows * rows);     // take the rows that follow; false: none shall be begun

// -- sample.c: one token from one row of logits
enum { UMA_TOP_MOST = 20 };
typedef struct uma_logprobs {
    int32_t n_top;           // alternatives wanted, at most UMA_TOP_MOST
    int32_t is_after;        // nonzero: of what the samplers left; else of the row as the model gave it
    int32_t n;               // alternatives found
    float   logprob;         // of the sampled token
    int32_t top_id[20];      // (n) likeliest first
    float   top_logprob[20]; // (n)
} uma_logprobs;

// How a session's rows become tokens. All pointers are the owner's, who may change everything between two calls.
typedef struct uma_sampler {
    struct llama_sampler * chain; // NULL: the largest logit decides
    int32_t  takes_best;     // nonzero: so it does after the chain
    int32_t  n_keep;         // the chain uses only so many of the best candidates (0: any number) ...
    float    keep_within;    // ... and none whose logit is further below the best (INFINITY: any)
    // Added to the row before all else: -INFINITY bans. Ids differ.
    int32_t  n_edits;
    int32_t  raises;         // nonzero: some edit does
    const llama_logit_bias * edits;
    // Tokens that may come now, a bit each, lowest first in each word; NULL: all. It is looked at when a token is drawn: only
    // if that one is refused the row is masked and drawn from again. `masks_first`: before, for chains that learn from draws.
    const uint32_t * mask;
    int32_t  masks_first;
    int32_t  forced;         // this token comes next, whatever the row says: nothing is drawn; -1: one is drawn
    // The last tokens, whose logits the chain may move: a ring of n_recent_most, 0 where there is no such link.
    int32_t  n_recent_most, n_recent, oldest;
    llama_token  * recent;
    uma_logprobs * logprobs; // of the last draw; NULL: none wanted
} uma_sampler;

// NULL: the best one. -1 where a logit is NaN, or nothing is left. The row is as it was afterwards.
llama_token uma_sample(float * logits, int32_t n_vocab, uma_sampler * sampler);
bool uma_sampler_accept(uma_sampler * sampler, llama_token token); // one that it did not draw; false: no memory
bool uma_sampler_accept_all(uma_sampler * sampler, const llama_token * tokens, int32_t n);
// Tokens were taken back: penalties and DRY count these n and no others. Random numbers that were drawn stay drawn. False: no memory.
bool uma_sampler_recount(uma_sampler * sampler, const llama_token * tokens, int32_t n);
// Whether it takes the row's best token where `uma_allows` that, and needs nothing else of the row.
bool uma_takes_best(const uma_sampler * sampler);
bool uma_allows(const uma_sampler * sampler, llama_token token);
// -- suffix.c: where the end of a text occurred before, in constant time a token. Tokens below 0 separate texts.
typedef struct uma_suffix uma_suffix;
typedef struct uma_suffix_cursor { // the longest end of another text that occurs in this one; all 0: none yet
    int32_t state, n_match;
} uma_suffix_cursor;

uma_suffix * uma_suffix_new(void);                                  // NULL: no memory
bool    uma_suffix_extend(uma_suffix * s, const llama_token * tokens, int32_t n); // false: no memory; nothing matches any more
// Position after the earlier place of the longest end of the text that has one. *n_match: its tokens, 0: there is none.
int32_t uma_suffix_match(const uma_suffix * s, int32_t * n_match);
int32_t uma_suffix_read(const uma_suffix * s, int32_t from, llama_token * out, int32_t n_most); // tokens copied, up to a separator
int32_t uma_suffix_follow(const uma_suffix * s, uma_suffix_cursor * at, llama_token token); // go on by a token; position after the match
int64_t uma_suffix_bytes(const uma_suffix * s);
void    uma_suffix_free(uma_suffix * s);

// -- top_p.c: llama_sampler_init_top_p(p, 1) for many candidates
struct llama_sampler * uma_sampler_top_p(float p);
// -- possible.c: candidates further below the best than `within` are dropped
struct llama_sampler * uma_sampler_possible(float within);

// -- gate.c: the eval callback of a decode context: finds the KV tensors, marks cells without computing
typedef struct uma_gate {
    int32_t mode;            // 0 open, 1 mark, 2 discover
    int32_t n_layer;         // layers whose K and V were found
    int32_t is_foreign;      // a cache write that is not a plain K or V row write was seen (recurrent, transposed V)
    struct ggml_backend * copier; // a stream of the device that holds K and V; NULL: host memory. The engine's
    struct ggml_tensor * k[512];
    struct ggml_tensor * v[512];
    // Not NULL: the rows of llama.cpp's `result_norm` (the last hidden states of the tokens that want an output) are copied to it, and
    // what follows, the product with the vocabulary, is left out. Room for hidden_max floats; n_hidden: copied since it was set to 0.
    float * hidden;
    int64_t hidden_max, n_hidden;
} uma_gate;

bool    uma_gate_cb(struct ggml_tensor * t, bool ask, void * gate); // a ggml_backend_sched_eval_callback
// Append n cells to the sequence as if n tokens had been decoded; their K and V are undefined until copied in.
int32_t uma_kv_mark(struct llama_context * ctx, uma_gate * gate, llama_seq_id seq_id, llama_pos pos0, int32_t n);

// -- kv.c: K and V rows moved directly, in slices. Stream mode only: cell == position, row = stream * n_cells + position.
typedef struct uma_span {
    const uma_gate * gate;   // NULL: host bytes
    int32_t          stream;  // host bytes: the first position that they hold
    int32_t          n_cells; // cells per stream of that cache; host bytes: how many positions they hold
    char           * bytes;   // gate == NULL: layout [layer][k, v][position]
} uma_span;

int64_t uma_kv_bytes(const uma_gate * gate, int32_t n);             // of n positions, all layers, K and V
// Move positions p0..p1 in slices from *cursor on until the clock passes until_ns (at least one). 1: all is moved.
int32_t uma_kv_move(const uma_span * from, const uma_span * to, int32_t p0, int32_t p1, int32_t * cursor, int64_t until_ns);
// Where K and V are on a device: queue copies within it instead of waiting for each. The caller frees gate->copier, and may share it.
void    uma_kv_open_copier(uma_gate * gate);
void    uma_kv_release_pages(const uma_gate * gate);                // give zeroed, untouched cache pages back to the system

// -- accel.c: our kernels inside ggml's CPU backend (native/ggml-uma), for every model and context of the process
int32_t      uma_accel_use(const char * isa); // of our kernels, NULL: the best; before the first model is loaded. -1: not on this processor
int32_t      uma_accel_register(void);      // before the first model is loaded; -1: nothing faster than ggml's for this processor
void         uma_accel_enable(uint32_t ops); // bit set: 1 matmul, 2 experts' matmul, 4 attention; 0 none. Not while a graph computes
int64_t      uma_accel_count(void);         // operations computed so far
const char * uma_accel_isa(void);           // instruction set in use
// Weights laid out for our products: the bytes that a matrix then takes (0: it stays as the file has it), and the buffer type that arranges them.
size_t       uma_accel_arranged_bytes(const struct ggml_tensor * weights);
int32_t      uma_accel_arranged_version(void); // of the layout; arranged bytes are the same for the same uma_accel_isa and version
ggml_backend_buffer_type_t uma_accel_arranged_type(void);
bool         uma_accel_multiplies(const struct ggml_tensor * weights); // products with these weights are ours, for any number of rows
int32_t      uma_accel_wants_plain_weights(void); // nonzero: faster on weights as the file has them than ggml on rearranged copies

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
void          uma_prefill_start_rows(uma_prefill * p, const llama_token * token, const llama_pos * pos, const llama_seq_id * seq_id, int32_t n);
void          uma_prefill_run(uma_prefill * p, int64_t until_ns, int64_t quantum_ns, int32_t min_pieces, uma_run * out);
void          uma_prefill_cancel(uma_prefill * p);                  // leave the paused chunk; its cells are the caller's to remove
void          uma_prefill_free(uma_prefill * p);

// -- paged.c, paged_plan.c: attention over KV in pages of 64 cells, as an operation of a ggml graph
typedef struct uma_paged uma_paged; // the plan of one batch; a graph that computes or is paused has one of its own
typedef struct uma_paged_shape {
    int32_t n_head, n_head_kv, n_threads;
    int32_t n_share;         // so many of n_head_kv read the same stored head: more query heads than the kernel takes at once
    int32_t dim_k, dim_v;    // of a head
    int64_t k_bytes, v_bytes; // of one head and position
    int64_t page_bytes;      // from one page to the next
    float   scale, softcap;  // of the scores; softcap 0: none
    int32_t window;          // positions that a row sees, its own the last of them; 0: all
} uma_paged_shape;

uma_paged * uma_paged_new(const uma_paged_shape * shape, int32_t n_rows_max);
void        uma_paged_free(uma_paged * p);
double      uma_paged_work(const uma_paged * p);                    // multiply-adds of one layer of the planned batch
// Row i sees positions 0..pos[i] of its sequence, or the last of them where there is a window. The sequence's page j is
// pages[seq_id[i] * n_pages_seq + j]; pages must live until computed.
bool        uma_paged_plan(uma_paged * p, const uma_rows * rows, const int32_t * pages, int32_t n_pages_seq);
// ggml_custom_op_t. src: q f32 (dim_k, n_head, rows); K and V of head 0, page 0; perhaps a sink f32 (n_head), a score without a value.
// dst: f32 (dim_v * n_head, rows). userdata: uma_paged *
void        uma_paged_attention(struct ggml_tensor * dst, int ith, int nth, void * paged);

// -- masked.c: attention by ggml's own operation over a span of cells, each row's own ones told by a mask
typedef struct uma_mask {
    uint16_t * full;         // f16 (n, n_cells): 0 where a row sees a cell, else -inf; NULL: every layer has a window
    uint16_t * window;       // the same in layers with a window; NULL: none has
    int64_t    first, n_cells; // the span
    int64_t    n_pool;       // cells that there are
    int32_t    n_window;     // positions that a row sees in layers with a window
    struct ggml_tensor ** views;     // K and V of the span's cells, as the graph reads them
    int32_t    n_views;
    struct ggml_tensor * inputs[2];  // the graph's masks, full and window; NULL where there is none
} uma_mask;

// The cells (first, how many) among which is all that the rows see, in steps of 256, for few rows of 1024, up to the last of `n_pool`.
// Rows of a sequence are in the order of their positions.
void uma_mask_span(const uma_rows * rows, const int32_t * pages, int32_t n_pages_seq, int64_t n_pool, int64_t * span);
void uma_mask_fill(const uma_mask * m, const uma_rows * rows, const int32_t * pages, int32_t n_pages_seq);

// -- forward.c: one graph of one batch shape: its inputs, one decode call
typedef struct uma_input {
    struct ggml_tensor * tensor; // of the graph, in a device's memory
    const void * data;           // what it is to hold
} uma_input;

// Where a batch's K, or V, of layers alike is written.
typedef struct uma_cells {
    int64_t * at;            // (n, n_head) KV rows
    int32_t   n_head;
    int64_t   page_rows;     // KV rows (one head, one position) from one page to the next
} uma_cells;

typedef struct uma_forward {
    struct ggml_backend * backend;
    struct ggml_cgraph  * graph;
    uma_paged * const * plans; // one for layers alike; NULL: attention goes by a mask
    int32_t   n_plans;
    uma_mask * mask;
    const int32_t * pages;   // (sequences, n_pages_seq)
    int32_t   n_pages_seq;
    int32_t * token;         // (n) inputs of the graph
    int32_t * pos;           // (n)
    const uma_cells * cells;
    int32_t   n_cells;
    int32_t * out_id;        // (outputs) rows that want logits; NULL: all
    float   * logits;        // (outputs, n_vocab)
    int32_t   n_vocab;
    int32_t   n_hidden;      // not 0: outputs are hidden states of so many floats, in place of logits; nothing is sampled
    // A device with memory of its own: the pointers above are to host memory, which is copied. Else the graph's own memory is theirs.
    const uma_input * inputs;
    int32_t   n_inputs;
    struct ggml_tensor * result; // the logits over there; NULL: none, or here
    struct ggml_tensor * best;   // each output's best token over there: greedy rows need no more; NULL: found here
    int32_t * best_id;           // (outputs)
    int32_t   has_logits;        // `logits` holds all that the last computation gave
} uma_forward;

// Make the graph one that reads these cells, no more than it was built for; it must not be computed meanwhile.
void uma_mask_fit(uma_forward * f, int64_t first, int64_t n_cells);

bool    uma_forward_fill(uma_forward * f, const uma_rows * rows);   // false: no memory
void    uma_forward_fetch(uma_forward * f);                         // after the graph was computed: its logits, where they are elsewhere
enum uma_forward_status { UMA_FORWARD_BAD_TOKEN = 2 };
int32_t uma_forward_decode(uma_forward * f, uma_rows * rows);       // fills, computes, samples; 0, a ggml_status (1: aborted), or the above
llama_token uma_forward_draw(uma_forward * f, int32_t row, uma_sampler * sampler); // a row's of the last call
void    uma_forward_settle(uma_ahead * ahead);                      // wait for what was begun, and forget it

// -- fitted.c: a graph laid out for its longest batch, made one of a shorter batch
typedef struct uma_fitting uma_fitting;
// Both contexts hold a graph built in the same way, the second one's batch longer by a row; only the first is kept. NULL: no memory, or not alike.
uma_fitting * uma_fitting_new(struct ggml_context * graph, struct ggml_context * longer);
void          uma_fitting_fit(const uma_fitting * f, int32_t n_less); // rows less than it was laid out for; masks lose their span (uma_mask_fit)
void          uma_fitting_free(uma_fitting * f);

// -- slices.c: a graph computed in pieces, the caller's other work in between
typedef struct uma_slices uma_slices;
uma_slices * uma_slices_new(const volatile int32_t * bell);
void         uma_slices_start(uma_slices * s, uma_forward * f, int32_t n, bool has_output); // a filled one, of n tokens; false: for their K and V alone
void         uma_slices_run(uma_slices * s, int64_t until_ns, int64_t quantum_ns, int32_t min_pieces, uma_run * out);
void         uma_slices_free(uma_slices * s);

/* cdef end */

// Whether the tensor holds the hidden states that the gate wants; copied once they are computed (`ask` false).
bool uma_gate_takes_hidden(uma_gate * gate, struct ggml_tensor * t, bool ask);

// -- tick.c: the tokens of all rows that want one
typedef llama_token (*uma_draw)(void * logits, int32_t row, uma_sampler * sampler);
void uma_draw_rows(const uma_rows * rows, uma_draw draw, void * logits);

void uma_guard_note_errno(void); // an error is being told of: is it one of memory?

#include "guard.h"
