// Shared by sample.c and logprobs.c.
#pragma once

#include "sampling/uma_sampling.h"

// Returns the largest of n logits, or NaN if any of them is NaN.
float uma_largest(const float * x, int32_t n);

// -- guarded.cpp: llama.cpp's samplers are C++ and may throw; an exception must not reach C. False: the sampler threw
#ifdef __cplusplus
extern "C" {
#endif
bool uma_chain_apply(struct llama_sampler * chain, llama_token_data_array * candidates);
bool uma_chain_accept(struct llama_sampler * chain, llama_token token);
#ifdef __cplusplus
}
#endif

// -- logprobs.c: fill `out` for `token`
void uma_logprobs_before(uma_logprobs * out, const float * logits, int32_t n_vocab, llama_token token);
// `candidates` as a chain left them: their probabilities add up to 1. NULL: `token` was the only one.
void uma_logprobs_after(uma_logprobs * out, const llama_token_data_array * candidates, llama_token token);
