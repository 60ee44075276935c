// Shared by the operations: checks of tensors, and the layout of a graph's work buffer.
#ifndef UMA_GGML_OP_H
#define UMA_GGML_OP_H

#include "ggml-backend-impl.h"
#include "ggml-cpu-impl.h"
#include "ggml-impl.h"
#include "ggml.h"

#include "../kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

// Our name for a weight or KV type; UMA_N_TYPES: not one of ours.
static inline enum uma_type uma_type_of(enum ggml_type type) {
    switch (type) {
        case GGML_TYPE_F16: return UMA_F16;
        case GGML_TYPE_Q8_0: return UMA_Q8_0;
        case GGML_TYPE_Q4_0: return UMA_Q4_0;
        case GGML_TYPE_Q4_K: return UMA_Q4_K;
        case GGML_TYPE_Q6_K: return UMA_Q6_K;
        case GGML_TYPE_Q5_K: return UMA_Q5_K;
        case GGML_TYPE_Q4_1: return UMA_Q4_1;
        case GGML_TYPE_Q5_0: return UMA_Q5_0;
        case GGML_TYPE_Q5_1: return UMA_Q5_1;
        case GGML_TYPE_IQ4_NL: return UMA_IQ4_NL;
        case GGML_TYPE_IQ4_XS: return UMA_IQ4_XS;
        case GGML_TYPE_MXFP4: return UMA_MXFP4;
        case GGML_TYPE_BF16: return UMA_BF16;
        case GGML_TYPE_F32: return UMA_F32;
        default: return UMA_N_TYPES;
    }
}

// True for plain rows in host memory, outside buffer types that rearrange their tensors.
static inline bool uma_is_plain(const struct ggml_tensor * t) {
    const ggml_backend_buffer_t buffer = t->view_src ? t->view_src->buffer : t->buffer;
    return t->nb[0] == ggml_type_size(t->type) && (buffer == NULL || ggml_backend_buft_is_host(buffer->buft));
}

// True for weights in the buffer of uma_ggml_repacked_type. They are laid out for our products, and nothing else can
// read them.
bool uma_is_repacked(const struct ggml_tensor * t);

// True if products read weights of this type as they are in the file. Other types have to be repacked.
static inline bool uma_reads_plain(enum uma_type type) {
    return type <= UMA_Q6_K || type == UMA_BF16 || type == UMA_F32;
}

// True if our product can read these weights, which are of one of our types. It reads plain weights only for `min_rows`
// rows or more.
static inline bool uma_can_read(const struct ggml_tensor * w, int64_t n_rows) {
    return uma_is_repacked(w)
        || (uma_reads_plain(uma_type_of(w->type)) && n_rows >= uma_kernels()->mm->min_rows && uma_is_plain(w));
}

static inline char * uma_align(void * p) { return (char *)(((uintptr_t)p + 63) & ~(uintptr_t)63); }
static inline size_t uma_pad(size_t n) { return (n + 63) & ~(size_t)63; }

// For each operation: whether it is ours, how many bytes of the work buffer it needs, and the computation of one
// thread's part.
bool   uma_mul_mat_is_ours(const struct ggml_tensor * op);
size_t uma_mul_mat_work_size(int n_threads, const struct ggml_tensor * op);
void   uma_mul_mat_compute(const struct ggml_compute_params * params, struct ggml_tensor * op);
bool   uma_mul_mat_id_is_ours(const struct ggml_tensor * op);
size_t uma_mul_mat_id_work_size(int n_threads, const struct ggml_tensor * op);
void   uma_mul_mat_id_compute(const struct ggml_compute_params * params, struct ggml_tensor * op);
bool   uma_attention_is_ours(const struct ggml_tensor * op);
size_t uma_attention_work_size(int n_threads, const struct ggml_tensor * op);
void   uma_attention_compute(const struct ggml_compute_params * params, struct ggml_tensor * op);

#ifdef __cplusplus
}
#endif

#endif
