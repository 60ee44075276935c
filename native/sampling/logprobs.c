// Log probabilities of the sampled token and of the likeliest ones: in the whole row, or among the candidates that the
// samplers left.
#include "sample.h"

#include <math.h>

enum { BLOCK = 256, LANES = 32 };

// exp(x) for x <= 0, to about 1 ulp: x = n ln 2 + r and a polynomial in r, in a form that compilers vectorise.
static inline float exp_below(float x) {
    const float low = x > -87.0f ? x : -87.0f;
    const float n = (float) (int32_t) (low * 1.44269504088896341f - 0.5f);
    const float r = low - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    union { int32_t i; float f; } two_to_n = { .i = ((int32_t) n + 127) * (1 << 23) };
    return x < -87.0f ? 0.0f : p * two_to_n.f;
}

static float sum_exp(const float * x, int32_t n, float best) {
    float sum[LANES] = { 0 };
    int32_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int j = 0; j < LANES; j++) {
            sum[j] += exp_below(x[i + j] - best);
        }
    }
    float total = 0;
    for (int j = 0; j < LANES; j++) {
        total += sum[j];
    }
    for (; i < n; i++) {
        total += exp_below(x[i] - best);
    }
    return total;
}

// Keeps the n_top largest values, largest first. Of equal values, those that came first are kept.
static void insert(uma_logprobs * out, llama_token id, float value) {
    int32_t at = out->n < out->n_top ? out->n++ : out->n_top - 1;
    for (; at > 0 && out->top_logprob[at - 1] < value; at--) {
        out->top_logprob[at] = out->top_logprob[at - 1];
        out->top_id[at]      = out->top_id[at - 1];
    }
    out->top_logprob[at] = value;
    out->top_id[at]      = id;
}

static bool belongs(const uma_logprobs * out, float value) {
    return out->n < out->n_top ? value > -INFINITY : out->n_top > 0 && value > out->top_logprob[out->n_top - 1];
}

void uma_logprobs_before(uma_logprobs * out, const float * logits, int32_t n_vocab, llama_token token) {
    float best = -INFINITY;
    out->n = 0;
    for (int32_t i = 0; i < n_vocab; i += BLOCK) {
        const int32_t n = n_vocab - i < BLOCK ? n_vocab - i : BLOCK;
        const float   most = uma_largest(logits + i, n);
        best = most > best ? most : best;
        for (int32_t j = i; belongs(out, most) && j < i + n; j++) {
            if (belongs(out, logits[j])) {
                insert(out, j, logits[j]);
            }
        }
    }
    double sum = 0;
    for (int32_t i = 0; i < n_vocab; i += BLOCK) {
        sum += sum_exp(logits + i, n_vocab - i < BLOCK ? n_vocab - i : BLOCK, best);
    }
    const double whole = best + log(sum);
    out->logprob = (float) (logits[token] - whole);
    for (int32_t i = 0; i < out->n; i++) {
        out->top_logprob[i] = (float) (out->top_logprob[i] - whole);
    }
}

void uma_logprobs_after(uma_logprobs * out, const llama_token_data_array * candidates, llama_token token) {
    out->n = 0;
    out->logprob = 0;
    if (!candidates) {
        if (out->n_top) {
            insert(out, token, 0);
        }
        return;
    }
    for (size_t i = 0; i < candidates->size; i++) {
        const llama_token_data * c = candidates->data + i;
        if (c->id == token) {
            out->logprob = logf(c->p);
        }
        if (c->p > 0 && belongs(out, c->p)) {
            insert(out, c->id, c->p);
        }
    }
    for (int32_t i = 0; i < out->n; i++) {
        out->top_logprob[i] = logf(out->top_logprob[i]);
    }
}
