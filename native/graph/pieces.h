// Where to cut a graph that is computed in pieces, learned from the times of earlier pieces.
//
// The cost of a piece is learned by kind of operation (nanoseconds per unit of work), so nothing is assumed about an
// architecture.
#pragma once

#include "ggml.h"

#include <stdbool.h>
#include <stdint.h>

enum uma_kind { UMA_MATMUL, UMA_GEMV, UMA_EXPERTS, UMA_ATTENTION, UMA_OTHER, UMA_N_KINDS };

// pieces of a kind whose median error counts: of 1, 3, 5 and 7 best in the worst run of tests/native/check_pieces.c
enum { UMA_N_RECENT = 3 };

typedef struct uma_pieces {
    double  ns_per_work[UMA_N_KINDS];
    double  recent[UMA_N_KINDS][UMA_N_RECENT]; // measured over predicted, of the last pieces
    int64_t n_seen[UMA_N_KINDS];
    double  piece[UMA_N_KINDS]; // predicted ns by kind since the last cut
    double  heaviest;           // predicted ns of the heaviest single node of this chunk
    // of the largest matrix that few rows were multiplied with: the output's, read at the end of a prompt
    double  head_bytes;
    // predicted work of this chunk; total is the previous chunk's, scaled, where the nodes to come are not known
    double  done_ns, total_ns;
    double  last_total_ns;
    int32_t last_n;
} uma_pieces;

void   uma_pieces_init(uma_pieces * p);
void   uma_pieces_begin(uma_pieces * p, int32_t n);                 // a chunk of n tokens
// Count a node into the piece; its predicted ns. `attention_work`: of an operation that does not show its own.
double uma_pieces_count(uma_pieces * p, const struct ggml_tensor * t, double attention_work);
// Whether the piece takes no longer than that with this node too.
bool   uma_pieces_fits(const uma_pieces * p, const struct ggml_tensor * t, double attention_work, int64_t limit_ns);
// Count a node where the nodes to come are not known; true where the piece should end with it.
bool   uma_pieces_add(uma_pieces * p, const struct ggml_tensor * t, int64_t quantum_ns);
double uma_pieces_planned_ns(const uma_pieces * p);                 // of the nodes that are counted since the last cut
double uma_pieces_head_ns(const uma_pieces * p);                    // of that matrix
void   uma_pieces_drop(uma_pieces * p);                             // the counted nodes are not computed now
void   uma_pieces_end(uma_pieces * p, int64_t elapsed_ns);          // the piece was computed
void   uma_pieces_finish(uma_pieces * p, int32_t n);                // so was the chunk
double uma_pieces_fraction(const uma_pieces * p);                   // of an unfinished chunk, 0..1
