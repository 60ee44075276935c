// The calls over our own ggml graphs.
// The part between the cdef marks is read by the bindings generator as it stands.
#pragma once

#include "llama.h"

#include <stdbool.h>
#include <stdint.h>

#include "runtime/uma_runtime.h"
#include "sampling/uma_sampling.h"
#include "llama/uma_llama.h"

/* cdef begin */

// -- paged.c, paged_plan.c: attention over KV in pages of 64 cells, as an operation of a ggml graph
typedef struct uma_paged uma_paged; // the plan of one batch; a graph that computes or is paused has one of its own
typedef struct uma_paged_shape {
    int32_t n_head, n_head_kv, n_threads;
    // this many of n_head_kv read the same stored head: more query heads than the kernel takes at once
    int32_t n_share;
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
// ggml_custom_op_t. src: q f32 (dim_k, n_head, rows); K and V of head 0, page 0; perhaps a sink f32 (n_head), a score
// without a value. dst: f32 (dim_v * n_head, rows). userdata: uma_paged *
void        uma_paged_attention(struct ggml_tensor * dst, int ith, int nth, void * paged);

// -- recurrent.c: layers with a state of fixed size per sequence, as operations of a ggml graph
typedef struct uma_stretch { // consecutive rows of one sequence
    int32_t first_row, n_rows;
    const float * from;      // the state before the first of them; NULL: zeros
    float       * to;        // the state after the last; another place
} uma_stretch;

typedef struct uma_stretches { // all rows of a batch; those of a sequence in the order of their positions
    uma_stretch * at;
    int32_t       n;
} uma_stretches;

// One layer's part of a state: n_taps rows of n_channels, the oldest first, and then n_head matrices of dim_v columns,
// each dim_k floats that lie together.
typedef struct uma_recurrence {
    const uma_stretches * plan;
    int64_t at;              // floats before it
    int32_t n_taps, n_channels;
    int32_t n_head, n_head_k, dim_k, dim_v; // dim_k a multiple of 16, at most 512; n_head a multiple of n_head_k
    int32_t is_tiled;        // head h reads K and Q of head h % n_head_k; else of h / (n_head / n_head_k)
    int32_t is_delta;        // the delta rule; else what is added does not depend on the state
    float   scale;           // of results
} uma_recurrence;

// What ggml_custom_4d takes, with userdata uma_recurrence *. By these: an address that Python takes itself is not the
// function's own, by which a graph's nodes are told apart.
ggml_custom_op_t uma_convolution_op(void);
ggml_custom_op_t uma_recur_op(void);
// src: x f32 (n_channels, rows), weights f32 (n_taps + 1, n_channels), the oldest row's first. dst: f32 (n_channels,
// rows)
void        uma_convolution(struct ggml_tensor * dst, int ith, int nth, void * recurrence);
// src, all f32: q and k (dim_k, n_head_k, rows), v (dim_v, n_head, rows), decay (n_head, rows), with the delta rule
// beta (n_head, rows). dst: f32 (dim_v, n_head, rows)
void        uma_recur(struct ggml_tensor * dst, int ith, int nth, void * recurrence);

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

// The cells (first, how many) among which is all that the rows see, in steps of 256, for few rows of 1024, up to the
// last of `n_pool`. Rows of a sequence are in the order of their positions.
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
    // not 0: outputs are hidden states of this many floats, in place of logits; nothing is sampled
    int32_t   n_hidden;
    // A device with memory of its own: the pointers above are to host memory, which is copied. Else the graph's own
    // memory is theirs.
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
// after the graph was computed: its logits, where they are elsewhere
void    uma_forward_fetch(uma_forward * f);
enum uma_forward_status { UMA_FORWARD_BAD_TOKEN = 2 };
// fills, computes, samples; 0, a ggml_status (1: aborted), or the above
int32_t uma_forward_decode(uma_forward * f, uma_rows * rows);
void    uma_forward_begin_next(uma_forward * f, uma_rows * rows); // the call after a decode of these rows that succeeded
llama_token uma_forward_draw(uma_forward * f, int32_t row, uma_sampler * sampler); // a row's of the last call
void    uma_forward_settle(uma_ahead * ahead);                      // wait for what was begun, and forget it

// -- fitted.c: a graph laid out for its longest batch, made one of a shorter batch
typedef struct uma_fitting uma_fitting;
// Both contexts hold a graph built in the same way, the second one's batch longer by a row; only the first is kept.
// NULL: no memory, or not alike.
uma_fitting * uma_fitting_new(struct ggml_context * graph, struct ggml_context * longer);
// rows less than it was laid out for; masks lose their span (uma_mask_fit)
void          uma_fitting_fit(const uma_fitting * f, int32_t n_less);
void          uma_fitting_free(uma_fitting * f);

// -- slices.c: a graph computed in pieces, the caller's other work in between
typedef struct uma_slices uma_slices;
uma_slices * uma_slices_new(const volatile int32_t * bell);
// a filled one, of n tokens; false: for their K and V alone
void         uma_slices_start(uma_slices * s, uma_forward * f, int32_t n, bool has_output);
void         uma_slices_run(uma_slices * s, int64_t until_ns, int64_t quantum_ns, int32_t min_pieces, uma_run * out);
void         uma_slices_free(uma_slices * s);

/* cdef end */

#include "runtime/guard.h"

// Multiply-adds of an operation of recurrent.c; below 0: it is another one.
double uma_recurrent_work(const struct ggml_tensor * t);
