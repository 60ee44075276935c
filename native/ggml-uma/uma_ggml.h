// Gives ggml's CPU backend the kernels of native/kernels, for every model, architecture and context of this process.
//
// ggml's CPU backend asks a list of "extra buffer types" about each operation before it computes it.
// `uma_ggml_register` adds a type that owns no buffers to that list. This type takes over operations on ordinary host
// memory. So weights stay where they are (mapped files included), graphs are not split, and the work is done by the
// threads, barriers and work buffer of the calling graph.
#ifndef UMA_GGML_H
#define UMA_GGML_H

#include <stddef.h>
#include <stdint.h>

struct ggml_backend_buffer_type;
struct ggml_tensor;

#ifdef __cplusplus
extern "C" {
#endif

enum uma_ggml_op { UMA_GGML_MUL_MAT, UMA_GGML_MUL_MAT_ID, UMA_GGML_ATTENTION, UMA_GGML_N_OPS };

// Add our operations to ggml's CPU backend. Call before the first model is loaded. Repeating it changes nothing.
// Returns 0, or -1 when this processor has only the portable kernels, which are not faster than ggml's.
int uma_ggml_register(void);

// Choose the operations to take over from the next graph on: a bit set of 1 << enum uma_ggml_op; 0: none. After
// registration all are on. Do not call this while a graph is being computed: a graph must be planned and computed under
// one setting.
void uma_ggml_enable(uint32_t ops);

// Returns whether we compute products with these weights, for any number of rows.
int uma_ggml_multiplies(const struct ggml_tensor * weights);

// Returns the bytes that a weight matrix takes when it is repacked for our products; 0: it is read as it is in the
// file, because of its type or shape, or because our operations are not registered.
size_t uma_ggml_repacked_bytes(const struct ggml_tensor * weights);

// A buffer type that repacks weights when they are set. Its tensors may only be the matrix of a MUL_MAT by f32 rows.
// That operation is then always ours, whatever is enabled. Memory is allocated in large pages. Use this type after
// registration, and only for tensors for which uma_ggml_repacked_bytes returned bytes.
struct ggml_backend_buffer_type * uma_ggml_repacked_type(void);

// Returns how many times we have computed an operation since the process started.
uint64_t uma_ggml_count(enum uma_ggml_op op);

// The instruction set in use, as `uma_kernels()->name`.
const char * uma_ggml_isa(void);

#ifdef __cplusplus
}
#endif

#endif
