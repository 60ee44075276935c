// One token from one row of logits. A row of 152k is read once; what looks closer does so only in the blocks that can matter.
#include "uma.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { LANES = 32, BLOCK = 256 };

// Candidates whose logit is so far below the best that their probability is under e^-32 at temperature 1
// are left out before the chain runs: a chain over a whole 152k vocabulary costs 0.1 to 11 ms a row.
static const float KEEP_WITHIN = 32.0f;

static _Thread_local struct {
    llama_token_data * candidates; // (n_vocab), the start of one block of memory that holds all three
    float * best;                  // (blocks) the largest logit of each
    float * sorted;                // (blocks)
    int32_t n_vocab;
} scratch;

// A thread's scratch goes with it: every model is opened on a thread of its own, which samples to warm up.
static pthread_key_t  freed_at_exit;
static pthread_once_t is_key_made = PTHREAD_ONCE_INIT;
static bool           has_key;

static void make_key(void) { has_key = pthread_key_create(&freed_at_exit, free) == 0; }

static bool reserve(int32_t n_vocab) {
    if (scratch.n_vocab >= n_vocab) {
        return true;
    }
    pthread_once(&is_key_made, make_key);
    free(scratch.candidates);
    const size_t n_blocks = (size_t) n_vocab / BLOCK + 1;
    scratch.n_vocab    = 0;
    scratch.candidates = malloc(sizeof(*scratch.candidates) * (size_t) n_vocab + 2 * sizeof(float) * n_blocks);
    if (!has_key || pthread_setspecific(freed_at_exit, scratch.candidates) != 0) {
        free(scratch.candidates);
        scratch.candidates = NULL;
    }
    if (!scratch.candidates) {
        return false;
    }
    scratch.best    = (float *) (scratch.candidates + n_vocab);
    scratch.sorted  = scratch.best + n_blocks;
    scratch.n_vocab = n_vocab;
    return true;
}

// The largest of n logits, NaN when any of them is. Written lane-wise so that compilers vectorise it.
static float largest(const float * x, int32_t n) {
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
    return any_bad ? NAN : top;
}

static int32_t block_end(int32_t block, int32_t n_vocab) {
    const int32_t end = (block + 1) * BLOCK;
    return end < n_vocab ? end : n_vocab;
}

// Fill scratch.best. The block that holds the first of the largest logits; -1 when any is NaN or none is finite.
static int32_t scan(const float * x, int32_t n_vocab, int32_t n_blocks) {
    float   top   = -INFINITY;
    int32_t where = -1;
    bool    is_bad = false;
    for (int32_t b = 0; b < n_blocks; b++) {
        const float best = scratch.best[b] = largest(x + b * BLOCK, block_end(b, n_vocab) - b * BLOCK);
        is_bad |= isnan(best);
        if (best > top) {
            top   = best;
            where = b;
        }
    }
    return is_bad || !isfinite(top) ? -1 : where;
}

static int is_less(const void * a, const void * b) {
    const float x = *(const float *) a, y = *(const float *) b;
    return (x < y) - (x > y);
}

// A logit that at least n_keep others reach: the n_keep-th largest of the blocks' best ones.
static float reached_by(int32_t n_keep, int32_t n_blocks) {
    if (n_keep <= 0 || n_keep > n_blocks) {
        return -INFINITY;
    }
    memcpy(scratch.sorted, scratch.best, sizeof(float) * (size_t) n_blocks);
    qsort(scratch.sorted, (size_t) n_blocks, sizeof(float), is_less);
    return scratch.sorted[n_keep - 1];
}

// The candidates that reach `floor`, in order of their ids.
static size_t collect(const float * x, int32_t n_vocab, int32_t n_blocks, float floor) {
    size_t n = 0;
    for (int32_t b = 0; b < n_blocks; b++) {
        if (scratch.best[b] < floor) {
            continue;
        }
        for (int32_t i = b * BLOCK; i < block_end(b, n_vocab); i++) {
            scratch.candidates[n] = (llama_token_data) { i, x[i], 0.0f };
            n += x[i] >= floor;
        }
    }
    return n;
}

// -- a chain's first link may say how many of the best candidates the rest of it can use

static const char * keep_name(const struct llama_sampler * s) { (void) s; return "uma-keep"; }
static void keep_apply(struct llama_sampler * s, llama_token_data_array * candidates) { (void) s; (void) candidates; }
static struct llama_sampler * keep_clone(const struct llama_sampler * s) { return uma_sampler_keep((int32_t) (intptr_t) s->ctx); }

static struct llama_sampler_i KEEP = { .name = keep_name, .apply = keep_apply, .clone = keep_clone };

struct llama_sampler * uma_sampler_keep(int32_t n) {
    return llama_sampler_init(&KEEP, (llama_sampler_context_t) (intptr_t) n);
}

static int32_t n_keep_of(struct llama_sampler * chain) {
    const struct llama_sampler * first = llama_sampler_chain_get(chain, 0);
    return first && first->iface == &KEEP ? (int32_t) (intptr_t) first->ctx : 0;
}

llama_token uma_sample(const float * logits, int32_t n_vocab, struct llama_sampler * chain) {
    const int32_t n_blocks = (n_vocab + BLOCK - 1) / BLOCK;
    if (!reserve(n_vocab)) {
        return -1;
    }
    const int32_t block = scan(logits, n_vocab, n_blocks);
    if (block < 0) {
        return -1;
    }
    if (!chain) {
        int32_t i = block * BLOCK;
        while (logits[i] != scratch.best[block]) {
            i++;
        }
        return i;
    }
    const float floor = fmaxf(scratch.best[block] - KEEP_WITHIN, reached_by(n_keep_of(chain), n_blocks));
    llama_token_data_array candidates = { scratch.candidates, collect(logits, n_vocab, n_blocks, floor), -1, false };
    llama_sampler_apply(chain, &candidates);
    if (candidates.selected < 0 || candidates.selected >= (int64_t) candidates.size) {
        return -1;
    }
    const llama_token token = candidates.data[candidates.selected].id;
    llama_sampler_accept(chain, token);
    return token;
}
