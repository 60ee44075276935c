// Paged attention: what paged_plan.c (planning) and paged.c (computing) share.
//
// A plan of one batch serves every layer. It consists of spans (some rows x a range of cells), each computed per KV
// head by whichever thread is free. Rows of one prompt share their spans; so do rows of different sequences that begin
// with the same pages.
#pragma once

#include "graph/uma_graph.h"

#include "kernels/kernels.h"

#include <stdatomic.h>

// Returns the end of the part that a cell is in. Parts are longer at higher positions: every row has few parts, and a
// row with a long context still has enough to spread over threads.
int64_t uma_part_end(int64_t cell);

typedef struct uma_page_span {
    int32_t first_row, n_rows;
    int64_t begin, end;      // cells
    const int32_t * pages;
    // its first row slot, if its rows have other spans too (it is then one part); -1: they have none, and it may be
    // many parts
    int64_t slot;
} uma_page_span;

struct uma_paged {
    uma_paged_shape shape;
    int32_t   n_rows_max, group, rows_most; // query heads per KV head; most rows per span
    size_t    dim;                          // floats per result, dim_v rounded up to 16
    // the batch
    int32_t   n_rows;
    int64_t * begin;                        // (n_rows) the first cell that the row sees: 0 without a window
    int64_t * cells;                        // (n_rows) the cell after the last one that it sees
    double    work;                         // multiply-adds of one layer
    // the plan
    uma_page_span * spans;
    int32_t   n_spans, spans_capacity;
    int32_t * first_part;                   // (n_rows + 1) into part_slot
    int32_t * next_part;                    // (n_rows) used while parts are listed
    int64_t * part_slot;                    // the row slots with the parts of each row
    int64_t   n_slots, slots_capacity, parts_capacity;
    struct uma_attn_part * parts;           // (slots, KV head, query head of its group)
    float   * out;                          // as parts, each `dim` floats
    // (n_rows, KV head) parts that are not computed yet; the thread that brings it to 0 restores it
    atomic_int * n_missing;
    atomic_int   next;                      // the next task; the last thread to read it resets it
    // one per thread
    char    * scratch;
    size_t    scratch_bytes;
};

static inline size_t uma_pad64(size_t n) { return (n + 63) & ~(size_t) 63; }

static inline size_t uma_paged_queries_most(const uma_paged * p) { return (size_t) p->rows_most * (size_t) p->group; }
