// CPU kernels for small batches: matrix products that read each weight once, attention that reads K and V once per KV
// head.
//
// Plain C, no allocation, no threads: the caller owns every buffer, runs its own team of threads and puts a barrier
// where a comment says so. `uma_kernels()` picks the widest instruction set that this processor has; all tables compute
// the same values up to rounding of f32 sums. Weights and KV rows are in ggml's block formats (ggml-common.h), little
// endian.
#ifndef UMA_KERNELS_H
#define UMA_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum uma_type {
    UMA_F16, UMA_Q8_0, UMA_Q4_0, UMA_Q4_K, UMA_Q6_K, // read as they are in the file, and (except F16) repacked
    UMA_Q5_K, UMA_Q4_1, UMA_Q5_0, UMA_Q5_1, UMA_IQ4_NL, UMA_IQ4_XS, UMA_MXFP4, // read only if they are repacked
    UMA_BF16, UMA_F32, // read as they are in the file
    UMA_N_TYPES
};

// y[n_rows][n_out] = x[n_rows][n_in] * w[n_out][n_in]^T. Strides are in bytes.
struct uma_mm {
    enum uma_type type;
    // n_in: a multiple of the type's block (32, or 256 for K-quants and IQ4_XS; any for F16, BF16 and F32)
    int64_t n_out, n_in, n_rows;
    const void * w;
    size_t w_stride;
    const float * x;
    size_t x_stride;
    float * y;
    size_t y_stride;
    const int32_t * y_index; // row r is written to y_index[r] and read from x_index[r]; NULL: to r, from r
    const int32_t * x_index;
    void * acts; // `mm_acts_bytes` bytes, 64-byte aligned, shared by the team
    int is_repacked; // w is the output of `repack`; w_stride is not used
};

// Version of the layout that `repack` writes. Its output is kept in files: it is the same for the same table and
// version.
enum { UMA_REPACKED_VERSION = 1 };

enum { UMA_PAGE_CELLS = 64 }; // cells in one page of paged KV, and in one tile of every attention loop

// The cells of one KV head. Cell c is at base + c * cell_stride, or, with pages, at base + pages[c / 64] * page_stride
// + (c % 64) * cell_stride.
struct uma_kv {
    const void * base;
    size_t cell_stride, page_stride;
    const int32_t * pages; // NULL: contiguous
};

// Attention of the rows that share one KV head: n_rows tokens x n_group query heads.
struct uma_attn {
    enum uma_type kv_type; // UMA_F16, UMA_BF16, UMA_Q8_0 or UMA_Q4_0
    int dim_k, dim_v;      // a multiple of 32 for q8_0 and q4_0
    int n_rows, n_group;   // n_rows * n_group <= UMA_ATTN_MAX_Q
    const float * q;       // row r, head g at (char *)q + r * q_row + g * q_head
    size_t q_row, q_head;
    struct uma_kv k, v; // if both have the same base, V is the beginning of K's rows
    int64_t cell_begin, cell_end; // the part of the cells to read; cell_begin is a multiple of 64
    int64_t fetch_end;            // cells from cell_end to here are read next, so they are prefetched; 0: none
    const uint16_t * mask;        // f16, added to the scores: row r at (char *)mask + r * mask_row; NULL: none
    size_t mask_row;
    const int64_t * row_cells; // row r sees only cells below row_cells[r]; NULL: all
    const int64_t * row_begin; // row r sees only cells from row_begin[r] on; NULL: all
    float scale, softcap;      // softcap 0: none
    const float * slopes;      // per query head, multiplies the mask (ALiBi); NULL: 1
};

enum { UMA_ATTN_MAX_Q = 64 };

// The contribution of one part of the cells to one query. `uma_attn_merge` merges the parts.
struct uma_attn_part {
    float max, sum; // largest score; sum of exp(score - max). Without a visible cell: max = -INFINITY, sum = 0
};

struct uma_mm_table {
    int panel;    // threads split n_out at multiples of this
    int min_rows; // with fewer rows these products are no faster than ggml's own dot products
    size_t (*acts_bytes)(enum uma_type type, int64_t n_in, int64_t n_rows);
    size_t (*scratch_bytes)(int64_t n_rows); // per thread
    // Quantise this thread's share of x and lay it out in acts. A barrier must follow.
    void (*pack)(const struct uma_mm * mm, int ith, int nth);
    // Compute y for weight rows out_begin..out_end-1 (out_begin a multiple of `panel`). scratch: 64-byte aligned.
    void (*rows)(const struct uma_mm * mm, int64_t out_begin, int64_t out_end, void * scratch);
    // Bytes that weights take when they are repacked for this table; 0: it reads this type only as it is in the file.
    size_t (*repacked_bytes)(enum uma_type type, int64_t n_out, int64_t n_in);
    // Repack weights. Only this table's `rows` understands the result. repacked: 64-byte aligned.
    void (*repack)(enum uma_type type, int64_t n_out, int64_t n_in, const void * w, size_t w_stride, void * repacked);
};

struct uma_attn_table {
    size_t (*scratch_bytes)(int dim_k, int dim_v); // per thread
    // Attend to cells cell_begin..cell_end-1. parts and out (dim_v floats, not yet divided by the sum) are per query:
    // index r * n_group + g.
    void (*run)(const struct uma_attn * attn, struct uma_attn_part * parts, float * out, size_t out_stride,
        void * scratch);
};

struct uma_kernels {
    const char * name; // "avx512vnni", "avx512", "avxvnni", "avx2", "neon-i8mm", "neon-dotprod", "neon", "portable"
    const struct uma_mm_table * mm;
    const struct uma_attn_table * attn;
};

// Returns the best table for this processor, or the one that `uma_kernels_use` chose. Never NULL. Thread-safe.
const struct uma_kernels * uma_kernels(void);

// Choose a table by its name; NULL chooses the best one. Returns -1 if this processor or this build does not have it.
// Call this before weights are repacked: tables need them in different orders.
int uma_kernels_use(const char * name);

// Returns the table of that name if this build has it and this processor can run it, else NULL.
const struct uma_kernels * uma_kernels_named(const char * name);

// Add a part to the sum of those before it: to `sum`, and to its vector y[dim_v]. An empty sum is { -INFINITY, 0 }; its
// vector is not read.
void uma_attn_fold(struct uma_attn_part * sum, float * y, const struct uma_attn_part * part, const float * out,
    int dim_v);
// Divide a sum's vector `out` by the sum, into y[dim_v], which may be `out`. For `sink` see below.
void uma_attn_finish(const struct uma_attn_part * sum, const float * out, int dim_v, const float * sink, float * y);

// Merge `n_parts` partial results of one query and divide by the sum, into y[dim_v]. Part i's vector is at (char *)out
// + i * out_stride. sink: a score that takes part in the sum without a value (attention sinks); NULL: none. Without a
// visible cell the result is zeros.
void uma_attn_merge(const struct uma_attn_part * parts, size_t part_stride, const float * out, size_t out_stride,
    int n_parts, int dim_v,
                    const float * sink, float * y);

#ifdef __cplusplus
}
#endif

#endif
