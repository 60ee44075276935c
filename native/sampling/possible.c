// A link of a sampler chain that drops candidates that can never be drawn, because llama.cpp's typical-p and Mirostat
// turn a probability of 0 into NaN.
#include "sampling/uma_sampling.h"

#include <math.h>
#include <string.h>

static float within_of(const struct llama_sampler * s) {
    float within;
    const uint32_t bits = (uint32_t) (uintptr_t) s->ctx;
    memcpy(&within, &bits, sizeof(within));
    return within;
}

static void possible_apply(struct llama_sampler * s, llama_token_data_array * c) {
    float best = -INFINITY;
    for (size_t i = 0; i < c->size; i++) {
        best = c->data[i].logit > best ? c->data[i].logit : best;
    }
    if (!(best > -INFINITY)) {
        return; // llama.cpp ends the process if no candidate is left
    }
    const float within = within_of(s);
    size_t n = 0;
    for (size_t i = 0; i < c->size; i++) {
        c->data[n] = c->data[i];
        n += c->data[i].logit >= best - within;
    }
    c->size = n;
}

static const char * possible_name(const struct llama_sampler * s) { (void) s; return "uma-possible"; }
static struct llama_sampler * possible_clone(const struct llama_sampler * s) {
    return uma_sampler_possible(within_of(s));
}

static struct llama_sampler_i POSSIBLE = { .name = possible_name, .apply = possible_apply, .clone = possible_clone };

struct llama_sampler * uma_sampler_possible(float within) {
    uint32_t bits;
    memcpy(&bits, &within, sizeof(bits));
    return llama_sampler_init(&POSSIBLE, (llama_sampler_context_t) (uintptr_t) bits);
}
