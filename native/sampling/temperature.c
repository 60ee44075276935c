// llama.cpp's dynamic temperature, also for temperatures so low that logits leave the range of f32 and probabilities
// are not numbers. Then only the likeliest candidate is left, as with every temperature near 0.
#include "sample.h"

#include <math.h>

static llama_token_data best_of(const llama_token_data_array * c) {
    llama_token_data best = { -1, -INFINITY, 1.0f };
    for (size_t i = 0; i < c->size; i++) {
        if (c->data[i].logit > best.logit) {
            best.id    = c->data[i].id;
            best.logit = c->data[i].logit;
        }
    }
    return best;
}

static bool has_nan(const llama_token_data_array * c) {
    for (size_t i = 0; i < c->size; i++) {
        if (isnan(c->data[i].logit)) {
            return true;
        }
    }
    return false;
}

static void temperature_apply(struct llama_sampler * s, llama_token_data_array * c) {
    llama_token_data best = best_of(c);
    const bool is_applied = uma_chain_apply(s->ctx, c);
    if (best.id < 0 || (is_applied && isfinite(best_of(c).logit) && !has_nan(c))) {
        return;
    }
    best.logit = 0.0f;
    c->data[0] = best;
    c->size    = 1;
}

static const char * temperature_name(const struct llama_sampler * s) { return llama_sampler_name(s->ctx); }
static struct llama_sampler * temperature_clone(const struct llama_sampler * s) {
    return uma_sampler_temperature(llama_sampler_clone(s->ctx));
}
static void temperature_free(struct llama_sampler * s) { llama_sampler_free(s->ctx); }

static struct llama_sampler_i TEMPERATURE = {
    .name = temperature_name, .apply = temperature_apply, .clone = temperature_clone, .free = temperature_free,
};

struct llama_sampler * uma_sampler_temperature(struct llama_sampler * own) {
    return llama_sampler_init(&TEMPERATURE, own);
}
