// Makes calls into llama.cpp and ggml return a failure where they would otherwise throw or end the process.
//
// Both libraries throw std::bad_alloc, and abort if a GGML_ASSERT does not hold: with a damaged model file, or without
// enough memory. Nothing above a C function catches an exception, so both would end the daemon. With these macros,
// which are in force everywhere in the bindings and in our own C, such a call returns the value that it returns for any
// other failure.
#pragma once

#include "llama.h"

#include "ggml-alloc.h"
#include "ggml-cpu.h"
#include "gguf.h"

#ifdef __cplusplus
extern "C" {
#endif

#define UMA_GUARDED_LOADING(F) \
    F(struct llama_model *, llama_model_load_from_file, (const char * path, struct llama_model_params params),         \
        (path, params), nullptr)                                                                                       \
    F(struct llama_adapter_lora *, llama_adapter_lora_init, (struct llama_model * model, const char * path),           \
        (model, path), nullptr)                                                                                        \
    F(struct llama_context *, llama_init_from_model, (struct llama_model * model, struct llama_context_params params), \
        (model, params), nullptr)                                                                                      \
    F(struct gguf_context *, gguf_init_from_file, (const char * path, struct gguf_init_params params), (path, params), \
        nullptr)                                                                                                       \
    F(struct ggml_context *, ggml_init, (struct ggml_init_params params), (params), nullptr) \
    F(ggml_gallocr_t, ggml_gallocr_new, (ggml_backend_buffer_type_t type), (type), nullptr) \
    F(bool, ggml_gallocr_alloc_graph, (ggml_gallocr_t galloc, struct ggml_cgraph * graph), (galloc, graph), false) \
    F(ggml_backend_t, ggml_backend_dev_init, (ggml_backend_dev_t device, const char * params), (device, params),       \
        nullptr)                                                                                                       \
    F(struct ggml_backend_buffer *, ggml_backend_alloc_ctx_tensors_from_buft, \
      (struct ggml_context * context, ggml_backend_buffer_type_t type), (context, type), nullptr) \
    F(ggml_backend_buffer_t, ggml_backend_buft_alloc_buffer, (ggml_backend_buffer_type_t type, size_t size),           \
        (type, size), nullptr)                                                                                         \
    F(ggml_backend_buffer_t, ggml_backend_cpu_buffer_from_ptr, (void * memory, size_t size), (memory, size), nullptr) \
    F(ggml_backend_buffer_t, ggml_backend_dev_buffer_from_host_ptr, \
      (ggml_backend_dev_t device, void * memory, size_t size, size_t most), (device, memory, size, most), nullptr) \
    F(int32_t, llama_tokenize, \
      (const struct llama_vocab * vocab, const char * text, int32_t n_text, llama_token * tokens, int32_t n_most,      \
          bool add, bool parse),                                                                                       \
      (vocab, text, n_text, tokens, n_most, add, parse), INT32_MIN) \
    F(int32_t, llama_token_to_piece, \
      (const struct llama_vocab * vocab, llama_token token, char * buffer, int32_t size, int32_t n_strip,              \
          bool special),                                                                                               \
      (vocab, token, buffer, size, n_strip, special), 0) \
    F(const char *, llama_vocab_get_text, (const struct llama_vocab * vocab, llama_token token), (vocab, token),       \
        nullptr)

// While a graph is computed an assertion still ends the process: other threads are in the middle of the same graph.
// After an exception there, the computing object is in an unknown state: UMA_BROKEN says that it must no longer be used
// or freed.
#define UMA_GUARDED_COMPUTING(F) \
    F(int32_t, llama_decode, (struct llama_context * context, struct llama_batch batch), (context, batch), UMA_BROKEN) \
    F(int32_t, llama_encode, (struct llama_context * context, struct llama_batch batch), (context, batch), UMA_BROKEN) \
    F(enum ggml_status, ggml_backend_graph_compute, (ggml_backend_t backend, struct ggml_cgraph * graph),              \
        (backend, graph), (enum ggml_status) UMA_BROKEN)                                                               \
    F(enum ggml_status, ggml_backend_graph_compute_async, (ggml_backend_t backend, struct ggml_cgraph * graph),        \
        (backend, graph), (enum ggml_status) UMA_BROKEN)

#define UMA_GUARDED_DECLARE(type, name, parameters, arguments, failed) type uma_guarded_##name parameters;
UMA_GUARDED_LOADING(UMA_GUARDED_DECLARE)
UMA_GUARDED_COMPUTING(UMA_GUARDED_DECLARE)

#ifdef __cplusplus
}
#endif

#ifndef UMA_GUARD_ITSELF
#define llama_model_load_from_file               uma_guarded_llama_model_load_from_file
#define llama_adapter_lora_init                  uma_guarded_llama_adapter_lora_init
#define llama_init_from_model                    uma_guarded_llama_init_from_model
#define gguf_init_from_file                      uma_guarded_gguf_init_from_file
#define ggml_init                                uma_guarded_ggml_init
#define ggml_gallocr_new                         uma_guarded_ggml_gallocr_new
#define ggml_gallocr_alloc_graph                 uma_guarded_ggml_gallocr_alloc_graph
#define ggml_backend_dev_init                    uma_guarded_ggml_backend_dev_init
#define ggml_backend_alloc_ctx_tensors_from_buft uma_guarded_ggml_backend_alloc_ctx_tensors_from_buft
#define ggml_backend_buft_alloc_buffer           uma_guarded_ggml_backend_buft_alloc_buffer
#define ggml_backend_cpu_buffer_from_ptr         uma_guarded_ggml_backend_cpu_buffer_from_ptr
#define ggml_backend_dev_buffer_from_host_ptr    uma_guarded_ggml_backend_dev_buffer_from_host_ptr
#define llama_tokenize                           uma_guarded_llama_tokenize
#define llama_token_to_piece                     uma_guarded_llama_token_to_piece
#define llama_vocab_get_text                     uma_guarded_llama_vocab_get_text
#define llama_decode                             uma_guarded_llama_decode
#define llama_encode                             uma_guarded_llama_encode
#define ggml_backend_graph_compute               uma_guarded_ggml_backend_graph_compute
#define ggml_backend_graph_compute_async         uma_guarded_ggml_backend_graph_compute_async
#endif
