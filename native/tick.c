// One decode call and its sampling: the hot path, entered once per call so that the GIL is taken once.
#include "uma.h"

#include <math.h>
#include <stdlib.h>

enum { LANES = 32 };

// Index of the largest logit; -1 when any is NaN or none is finite. Written lane-wise so that compilers vectorise it.
static llama_token argmax(const float * x, int32_t n) {
    float best[LANES];
    int   bad[LANES] = { 0 };
    for (int j = 0; j < LANES; j++) {
        best[j] = -INFINITY;
    }
    int32_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int j = 0; j < LANES; j++) {
            best[j] = x[i + j] > best[j] ? x[i + j] : best[j];
            bad[j] |= x[i + j] != x[i + j];
        }
    }
    float top = -INFINITY;
    int   any_bad = 0;
    for (int j = 0; j < LANES; j++) {
        top = best[j] > top ? best[j] : top;
        any_bad |= bad[j];
    }
    for (; i < n; i++) {
        top = x[i] > top ? x[i] : top;
        any_bad |= x[i] != x[i];
    }
    if (any_bad || !isfinite(top)) {
        return -1;
    }
    for (i = 0; i < n; i++) {
        if (x[i] == top) {
            return i;
        }
    }
    return -1;
}

// Candidates whose logit is so far below the best that their probability is under e^-32 at temperature 1
// are left out before the chain runs: a chain over a whole 152k vocabulary costs 0.1 to 11 ms a row.
static const float KEEP_WITHIN = 32.0f;

llama_token uma_sample(const float * logits, int32_t n_vocab, struct llama_sampler * chain) {
    const llama_token best = argmax(logits, n_vocab);
    if (best < 0 || !chain) {
        return best;
    }
    static _Thread_local llama_token_data * scratch;
    static _Thread_local int32_t capacity;
    if (capacity < n_vocab) {
        free(scratch);
        scratch  = malloc(sizeof(*scratch) * n_vocab);
        capacity = scratch ? n_vocab : 0;
        if (!scratch) {
            return -1;
        }
    }
    const float floor = logits[best] - KEEP_WITHIN;
    int32_t n = 0;
    for (int32_t i = 0; i < n_vocab; i++) {
        scratch[n] = (llama_token_data) { i, logits[i], 0.0f };
        n += logits[i] >= floor;
    }
    llama_token_data_array candidates = { scratch, (size_t) n, -1, false };
    llama_sampler_apply(chain, &candidates);
    if (candidates.selected < 0 || candidates.selected >= (int64_t) candidates.size) {
        return -1;
    }
    const llama_token token = candidates.data[candidates.selected].id;
    llama_sampler_accept(chain, token);
    return token;
}

int32_t uma_decode(struct llama_context * ctx, uma_rows * rows) {
    const int64_t t0 = uma_now_ns();
    int32_t       n_seq_id[rows->n];
    llama_seq_id * seq_id[rows->n];
    for (int32_t i = 0; i < rows->n; i++) {
        n_seq_id[i] = 1;
        seq_id[i]   = rows->seq_id + i;
    }
    struct llama_batch batch = {
        .n_tokens = rows->n, .token = rows->token, .pos = rows->pos,
        .n_seq_id = n_seq_id, .seq_id = seq_id, .logits = rows->want,
    };
    const int32_t rc = llama_decode(ctx, batch);
    if (rc == 0) {
        llama_synchronize(ctx);
    }
    const int64_t t1 = uma_now_ns();
    rows->call_ns   = t1 - t0;
    rows->sample_ns = 0;
    if (rc != 0) {
        return rc;
    }
    const int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx)));
    // Once for all rows, which lie in batch order: every call of the getters synchronises with the device.
    const float * logits = llama_get_logits(ctx);
    for (int32_t i = 0, row = 0; i < rows->n; i++) {
        if (rows->want[i]) {
            rows->out[row] = logits ? uma_sample(logits + (int64_t) row * n_vocab, n_vocab, rows->chain[row]) : -1;
            row++;
        }
    }
    rows->sample_ns = uma_now_ns() - t1;
    return 0;
}
