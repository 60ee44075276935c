// Top-p over a whole vocabulary. llama.cpp sorts all candidates first, which takes 9 to 22 ms per row of 152k. Here
// only those down to the cut are sorted.
#include "sampling/uma_sampling.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_BINS = 256 };
static const float BINS_PER_NAT = 8.0f; // the last bin takes all candidates with e^-32 of the best one's mass or less

static int bin_of(float logit, float best) {
    const float below = (best - logit) * BINS_PER_NAT;
    return below < N_BINS - 1 ? (int) below : N_BINS - 1;
}

static float largest_logit(const llama_token_data_array * c) {
    float best = -INFINITY;
    for (size_t i = 0; i < c->size; i++) {
        best = c->data[i].logit > best ? c->data[i].logit : best;
    }
    return best;
}

static int is_less_likely(const void * a, const void * b) {
    const llama_token_data * x = a, * y = b;
    return x->logit != y->logit ? (x->logit < y->logit) - (x->logit > y->logit) : (x->id > y->id) - (x->id < y->id);
}

// Moves the candidates of bins 0..last to the front. Returns their number.
static size_t gather(llama_token_data_array * c, float best, int last) {
    size_t n = 0;
    for (size_t i = 0; i < c->size; i++) {
        if (bin_of(c->data[i].logit, best) <= last) {
            c->data[n++] = c->data[i];
        }
    }
    return n;
}

// A link's parameters, stored in its context pointer itself.
struct top_p { float p; uint32_t min_keep; };

static_assert(sizeof(struct top_p) == sizeof(void *), "a pointer holds the parameters");

static struct top_p params_of(const struct llama_sampler * s) {
    struct top_p params;
    memcpy(&params, &s->ctx, sizeof(params));
    return params;
}

// Keeps the likeliest candidates whose probabilities add up to p, likeliest first: at least min_keep, and at least one.
static void top_p_apply(struct llama_sampler * s, llama_token_data_array * c) {
    const struct top_p params = params_of(s);
    const float best = largest_logit(c);
    if (c->size < 2 || !isfinite(best)) {
        return;
    }
    double mass_of[N_BINS] = { 0 }; // sums of exp(logit - best)
    size_t n_of[N_BINS] = { 0 };
    double total = 0;
    for (size_t i = 0; i < c->size; i++) {
        const float mass = expf(c->data[i].logit - best);
        const int bin = bin_of(c->data[i].logit, best);
        mass_of[bin] += mass;
        n_of[bin]++;
        total += mass;
    }
    const double wanted = total * params.p;
    int    last = 0;
    double seen = mass_of[0];
    size_t n_seen = n_of[0];
    while ((seen < wanted || n_seen < params.min_keep) && last < N_BINS - 1) {
        seen += mass_of[++last];
        n_seen += n_of[last];
    }
    const size_t n = gather(c, best, last);
    qsort(c->data, n, sizeof(*c->data), is_less_likely);
    size_t kept = 0;
    for (double sum = 0; kept < n && (kept == 0 || kept < params.min_keep || sum < wanted); kept++) {
        sum += expf(c->data[kept].logit - best);
    }
    c->size   = kept;
    c->sorted = true;
}

static const char * top_p_name(const struct llama_sampler * s) { (void) s; return "uma-top-p"; }
static struct llama_sampler * top_p_clone(const struct llama_sampler * s) {
    const struct top_p params = params_of(s);
    return uma_sampler_top_p(params.p, params.min_keep);
}

static struct llama_sampler_i TOP_P = { .name = top_p_name, .apply = top_p_apply, .clone = top_p_clone };

struct llama_sampler * uma_sampler_top_p(float p, uint32_t min_keep) {
    const struct top_p params = { p, min_keep };
    llama_sampler_context_t ctx;
    memcpy(&ctx, &params, sizeof(ctx));
    return llama_sampler_init(&TOP_P, ctx);
}
