// Calls on our own ggml graphs.
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
typedef struct uma_paged uma_paged; // the plan of one batch; every graph that is computing or paused has its own
typedef struct uma_paged_shape {
    int32_t n_head, n_head_kv, n_threads;
    // this many of n_head_kv read the same stored head, if it has more query heads than the kernel takes at once
    int32_t n_share;
    int32_t dim_k, dim_v;    // of a head
    int64_t k_bytes, v_bytes; // of one head and position
    int64_t page_bytes;      // from one page to the next
    float   scale, softcap;  // of the scores; softcap 0: none
    int32_t window;          // positions that a row sees, up to its own; 0: all
} uma_paged_shape;

uma_paged * uma_paged_new(const uma_paged_shape * shape, int32_t n_rows_max);
void        uma_paged_free(uma_paged * p);
double      uma_paged_work(const uma_paged * p);                    // multiply-adds of one layer of the planned batch
// Row i sees positions 0..pos[i] of its sequence, or the last `window` of them. The sequence's page j is
// pages[seq_id[i] * n_pages_seq + j]; `pages` must stay valid until the batch is computed.
bool        uma_paged_plan(uma_paged * p, const uma_rows * rows, const int32_t * pages, int32_t n_pages_seq);
// ggml_custom_op_t. src: q f32 (dim_k, n_head, rows); K and V of head 0, page 0; optionally a sink f32 (n_head): a
// score without a value. dst: f32 (dim_v * n_head, rows). userdata: uma_paged *
void        uma_paged_attention(struct ggml_tensor * dst, int ith, int nth, void * paged);

// -- recurrent.c: layers with a state of fixed size per sequence, as operations of a ggml graph
typedef struct uma_stretch { // consecutive rows of one sequence
    int32_t first_row, n_rows;
    const float * from;      // the state before the first of them; NULL: zeros
    float       * to;        // the state after the last; not the same memory
} uma_stretch;

typedef struct uma_stretches { // all rows of a batch; those of a sequence in the order of their positions
    uma_stretch * at;
    int32_t       n;
} uma_stretches;

// One layer's part of a state: n_taps rows of n_channels, the oldest first, and then n_head matrices of dim_v columns.
// A column is dim_k consecutive floats.
typedef struct uma_recurrence {
    const uma_stretches * plan;
    int64_t at;              // floats of the state before this part
    int32_t n_taps, n_channels;
    int32_t n_head, n_head_k, dim_k, dim_v; // dim_k a multiple of 16, at most 512; n_head a multiple of n_head_k
    int32_t is_tiled;        // head h reads K and Q of head h % n_head_k; else of h / (n_head / n_head_k)
    int32_t is_delta;        // the delta rule; else what is added does not depend on the state
    float   scale;           // of results
} uma_recurrence;

// Return the functions to pass to ggml_custom_4d, with userdata uma_recurrence *. Python has to use these: an address
// that it takes itself is not the function's own, and a graph's nodes are told apart by it.
ggml_custom_op_t uma_convolution_op(void);
ggml_custom_op_t uma_recur_op(void);
// src: x f32 (n_channels, rows), weights f32 (n_taps + 1, n_channels), the oldest row's first. dst: f32 (n_channels,
// rows)
void        uma_convolution(struct ggml_tensor * dst, int ith, int nth, void * recurrence);
// src, all f32: q and k (dim_k, n_head_k, rows), v (dim_v, n_head, rows), decay (n_head, rows), with the delta rule
// beta (n_head, rows). dst: f32 (dim_v, n_head, rows)
void        uma_recur(struct ggml_tensor * dst, int ith, int nth, void * recurrence);

// -- masked.c: attention by ggml's own operation over a span of cells; a mask says which of them a row sees
typedef struct uma_mask {
    uint16_t * full;         // f16 (n, n_cells): 0 where a row sees a cell, else -inf; NULL: every layer has a window
    uint16_t * window;       // the same for layers with a window; NULL: no layer has one
    int64_t    first, n_cells; // the span
    int64_t    n_pool;       // cells in the pool
    int32_t    n_window;     // positions that a row sees in layers with a window
    struct ggml_tensor ** views;     // K and V of the span's cells, as the graph reads them
    int32_t    n_views;
    struct ggml_tensor * inputs[2];  // the graph's masks, full and window; NULL where there is none
} uma_mask;

// Sets `span` (first cell, number of cells) to a span that includes all cells that the rows see. It begins and ends at
// multiples of 256 (1024 for few rows), or ends at `n_pool`. Rows of a sequence are in the order of their positions.
void uma_mask_span(const uma_rows * rows, const int32_t * pages, int32_t n_pages_seq, int64_t n_pool, int64_t * span);
void uma_mask_fill(const uma_mask * m, const uma_rows * rows, const int32_t * pages, int32_t n_pages_seq);

// -- forward.c: the inputs of a graph for one batch shape, and one decode call
typedef struct uma_input {
    struct ggml_tensor * tensor; // of the graph, in a device's memory
    const void * data;           // what is copied to it
} uma_input;

// Where the K or V of a batch is written, in layers of one shape.
typedef struct uma_cells {
    int64_t * at;            // (n, n_head) KV rows
    int32_t   n_head;
    int64_t   page_rows;     // KV rows (one head, one position) from one page to the next
} uma_cells;

typedef struct uma_forward {
    struct ggml_backend * backend;
    struct ggml_cgraph  * graph;
    uma_paged * const * plans; // one for the layers of each shape; NULL: attention uses `mask`
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
    // not 0: outputs are hidden states of this many floats instead of logits; nothing is sampled
    int32_t   n_hidden;
    // If the device has its own memory, the pointers above are to host memory, which is copied. Otherwise they point
    // into the graph's own memory.
    const uma_input * inputs;
    int32_t   n_inputs;
    struct ggml_tensor * result; // the logits on the device; NULL: none, or in host memory
    struct ggml_tensor * best;   // each output's best token, all that greedy rows need; NULL: found on the host
    int32_t * best_id;           // (outputs)
    int32_t   has_logits;        // `logits` holds all logits of the last computation
} uma_forward;

// Make the graph read these cells, at most as many as it was built for. It must not be computing.
void uma_mask_fit(uma_forward * f, int64_t first, int64_t n_cells);

bool    uma_forward_fill(uma_forward * f, const uma_rows * rows);   // false: no memory, too many rows
// once the graph is computed: copies its logits to the host if they are on a device
void    uma_forward_fetch(uma_forward * f);
enum uma_forward_status { UMA_FORWARD_BAD_TOKEN = 2 };
// fills, computes, samples; 0, a ggml_status (1: aborted), or the above
int32_t uma_forward_decode(uma_forward * f, uma_rows * rows);
void    uma_forward_begin_next(uma_forward * f, uma_rows * rows); // begins the call after a decode that succeeded
llama_token uma_forward_draw(uma_forward * f, int32_t row, uma_sampler * sampler); // for a row of the last call
void    uma_forward_sync(uma_ahead * ahead);                      // waits for the call started ahead, and drops it

// -- fitted.c: fits a graph that was laid out for its longest batch to a shorter one
typedef struct uma_fitting uma_fitting;
// The contexts hold graphs that were built in the same way, the second for a batch with one more row; only the first is
// kept. NULL: no memory, or the graphs differ.
uma_fitting * uma_fitting_new(struct ggml_context * graph, struct ggml_context * longer);
// n_less: how many rows fewer than it was laid out for; masks lose their span (uma_mask_fit)
void          uma_fitting_fit(const uma_fitting * f, int32_t n_less);
void          uma_fitting_free(uma_fitting * f);

// -- slices.c: computes a graph in pieces, with the caller's other work in between
typedef struct uma_slices uma_slices;
uma_slices * uma_slices_new(const volatile int32_t * interrupt);
// f: filled with n tokens; has_output false: only their K, V and states are computed
void         uma_slices_start(uma_slices * s, uma_forward * f, int32_t n, bool has_output);
void         uma_slices_run(uma_slices * s, int64_t until_ns, int64_t quantum_ns, int32_t min_pieces, uma_run * out);
void         uma_slices_free(uma_slices * s);

/* cdef end */

#include "runtime/guard.h"

// Returns the multiply-adds of an operation of recurrent.c; below 0: it is another operation.
double uma_recurrent_work(const struct ggml_tensor * t);
