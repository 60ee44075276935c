// What the operations share: checks on tensors, and layout of a graph's work buffer.
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
        default: return UMA_N_TYPES;
    }
}

// Plain rows in host memory: not a buffer type that rearranges its tensors.
static inline bool uma_is_plain(const struct ggml_tensor * t) {
    const ggml_backend_buffer_t buffer = t->view_src ? t->view_src->buffer : t->buffer;
    return t->nb[0] == ggml_type_size(t->type) && (buffer == NULL || ggml_backend_buft_is_host(buffer->buft));
}

// Weights in the buffer of uma_ggml_arranged_type: laid out for our products, which nothing else can read.
bool uma_is_arranged(const struct ggml_tensor * t);

static inline char * uma_align(void * p) { return (char *)(((uintptr_t)p + 63) & ~(uintptr_t)63); }
static inline size_t uma_pad(size_t n) { return (n + 63) & ~(size_t)63; }

// Each operation: is it ours, how much of the work buffer does it need, and one thread's part of it.
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
