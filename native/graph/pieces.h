// Decides where to cut a graph that is computed in pieces, from the times of earlier pieces.
//
// The cost is learned per kind of operation, in nanoseconds per unit of work, so nothing is assumed about an
// architecture.
#pragma once

#include "ggml.h"

#include <stdbool.h>
#include <stdint.h>

enum uma_kind { UMA_MATMUL, UMA_GEMV, UMA_EXPERTS, UMA_ATTENTION, UMA_OTHER, UMA_N_KINDS };

// the median of a kind's last 3 errors counts: 3 did better than 1, 5 and 7 in the worst run of check_pieces.c
enum { UMA_N_RECENT = 3 };

typedef struct uma_pieces {
    double  ns_per_work[UMA_N_KINDS];
    double  recent[UMA_N_KINDS][UMA_N_RECENT]; // measured over predicted, of the last pieces
    int64_t n_seen[UMA_N_KINDS];
    double  piece[UMA_N_KINDS]; // predicted ns by kind since the last cut
    double  heaviest;           // predicted ns of the heaviest single node of this chunk
    // bytes of the largest matrix multiplied by few rows: the output matrix, read at the end of a prompt
    double  head_bytes;
    // predicted ns of this chunk; total_ns is the previous chunk's, scaled, if later nodes are not known yet
    double  done_ns, total_ns;
    double  last_total_ns;
    int32_t last_n;
} uma_pieces;

void   uma_pieces_init(uma_pieces * p);
void   uma_pieces_begin(uma_pieces * p, int32_t n);                 // a chunk of n tokens
// Add a node to the piece; returns its predicted ns. `attention_work`: work that the tensors of a node do not show.
double uma_pieces_count(uma_pieces * p, const struct ggml_tensor * t, double attention_work);
// Returns whether the piece with this node too takes at most limit_ns.
bool   uma_pieces_fits(const uma_pieces * p, const struct ggml_tensor * t, double attention_work, int64_t limit_ns);
// Add a node while later nodes are not known; returns whether the piece should end with it.
bool   uma_pieces_add(uma_pieces * p, const struct ggml_tensor * t, int64_t quantum_ns);
double uma_pieces_planned_ns(const uma_pieces * p);                 // of the nodes added since the last cut
double uma_pieces_head_ns(const uma_pieces * p);                    // of the matrix of head_bytes
void   uma_pieces_drop(uma_pieces * p);                             // the added nodes are not computed now
void   uma_pieces_end(uma_pieces * p, int64_t elapsed_ns);          // the piece was computed
void   uma_pieces_finish(uma_pieces * p, int32_t n);                // the chunk was computed
double uma_pieces_fraction(const uma_pieces * p);                   // of an unfinished chunk, 0..1
