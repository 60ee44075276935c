// Tokens from rows of logits.
// The part between the cdef marks is read by the bindings generator as it stands.
#pragma once

#include "llama.h"

#include <stdbool.h>
#include <stdint.h>

#include "runtime/uma_runtime.h"

/* cdef begin */

// -- sample.c: one token from one row of logits
enum { UMA_TOP_MOST = 20 };
typedef struct uma_logprobs {
    int32_t n_top;           // alternatives wanted, at most UMA_TOP_MOST
    int32_t is_after;        // nonzero: among what the samplers left; else in the row as the model gave it
    int32_t n;               // alternatives found
    float   logprob;         // of the sampled token
    int32_t top_id[20];      // (n) likeliest first
    float   top_logprob[20]; // (n)
} uma_logprobs;

// How a session's rows become tokens. All pointers belong to the owner, who may change everything between two calls.
typedef struct uma_sampler {
    struct llama_sampler * chain; // NULL: the largest logit decides
    int32_t  takes_best;     // nonzero: the largest logit decides after the chain
    int32_t  n_keep;         // the chain uses only this many of the best candidates (0: any number) ...
    float    keep_within;    // ... and none whose logit is further below the best (INFINITY: any)
    // Added to the row before all else: -INFINITY bans.
    int32_t  n_edits;
    int32_t  raises;         // nonzero: some edit raises a logit
    const llama_logit_bias * edits;
    // Tokens that are allowed next, a bit each, lowest first in each word; NULL: all. A token is drawn from the whole
    // row; only if the mask refuses it, the row is masked and drawn from again. `masks_first`: the row is masked before
    // the first draw, for chains that learn from draws.
    const uint32_t * mask;
    int32_t  masks_first;
    int32_t  forced;         // this token comes next and none is drawn; -1: a token is drawn
    // The last tokens, whose logits the chain may move: a ring of n_recent_most, 0 if the chain has no such link.
    int32_t  n_recent_most, n_recent, oldest;
    llama_token  * recent;
    uma_logprobs * logprobs; // of the last draw; NULL: none wanted
} uma_sampler;

// sampler NULL: takes the best token. Returns -1 if a logit is NaN or no candidate is left. Afterwards the row is
// unchanged.
llama_token uma_sample(float * logits, int32_t n_vocab, uma_sampler * sampler);
bool uma_sampler_accept(uma_sampler * sampler, llama_token token); // a token that it did not draw; false: no memory
bool uma_sampler_accept_all(uma_sampler * sampler, const llama_token * tokens, int32_t n);
// After tokens were taken back: penalties and DRY count these n and no others. Random numbers that were drawn stay
// drawn. False: no memory.
bool uma_sampler_recount(uma_sampler * sampler, const llama_token * tokens, int32_t n);
// Returns whether it takes the row's best token if `uma_allows` that token, and needs nothing else of the row.
bool uma_takes_best(const uma_sampler * sampler);
bool uma_allows(const uma_sampler * sampler, llama_token token);

// -- top_p.c: llama_sampler_init_top_p for many candidates
struct llama_sampler * uma_sampler_top_p(float p, uint32_t min_keep);

// -- temperature.c: llama.cpp's dynamic temperature `own`, which it owns; if that fails, only the best token is left
struct llama_sampler * uma_sampler_temperature(struct llama_sampler * own);

// -- possible.c: candidates further below the best than `within` are dropped
struct llama_sampler * uma_sampler_possible(float within);

/* cdef end */

#include "runtime/guard.h"
