// Draws one token from one row of logits. A row of 152k is read once; after that only the blocks that can matter are
// read.
#include "sample.h"

#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { LANES = 32, BLOCK = 256, WORD = 32 };

static _Thread_local struct {
    llama_token_data * candidates; // (n_vocab), the start of one block of memory that holds all of these
    llama_token_data * apart;      // (n_vocab) tokens that the chain may move, with their logits
    float * edited;                // (n_vocab) logits of edited tokens before the edit
    float * masked;                // (n_vocab) the row without the tokens that the mask refuses
    float * best;                  // (blocks) the largest logit of each block
    float * sorted;                // (blocks)
    uint32_t * marks;              // (n_vocab bits) tokens in `apart`; 0 between two calls
    int32_t n_vocab;
} scratch;

// A thread's scratch is freed when the thread exits: every model is opened on a thread of its own, which samples to
// warm up.
static pthread_key_t  freed_at_exit;
static pthread_once_t is_key_made = PTHREAD_ONCE_INIT;
static bool           has_key;

static void make_key(void) { has_key = pthread_key_create(&freed_at_exit, free) == 0; }

// `n_edits`: a small vocabulary may have more edits than tokens, because a token may be edited several times.
static bool reserve(int32_t n_vocab, int32_t n_edits) {
    n_vocab = n_edits > n_vocab ? n_edits : n_vocab;
    if (scratch.n_vocab >= n_vocab) {
        return true;
    }
    pthread_once(&is_key_made, make_key);
    free(scratch.candidates);
    const size_t n = (size_t) n_vocab, n_blocks = n / BLOCK + 1, n_words = n_blocks * BLOCK / WORD;
    scratch.n_vocab    = 0;
    const size_t n_bytes = 2 * n * sizeof(llama_token_data) + 2 * (n + n_blocks)
        * sizeof(float) + n_words * sizeof(uint32_t);
    scratch.candidates = malloc(n_bytes);
    if (!has_key || pthread_setspecific(freed_at_exit, scratch.candidates) != 0) {
        free(scratch.candidates);
        scratch.candidates = NULL;
    }
    if (!scratch.candidates) {
        return false;
    }
    scratch.apart   = scratch.candidates + n;
    scratch.edited  = (float *) (scratch.apart + n);
    scratch.masked  = scratch.edited + n;
    scratch.best    = scratch.masked + n;
    scratch.sorted  = scratch.best + n_blocks;
    scratch.marks   = (uint32_t *) (scratch.sorted + n_blocks);
    scratch.n_vocab = n_vocab;
    memset(scratch.marks, 0, sizeof(uint32_t) * n_words);
    return true;
}

// Written lane-wise so that compilers vectorise it.
float uma_largest(const float * x, int32_t n) {
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

// Fills scratch.best. Returns the largest logit of the row, or NaN if any logit is NaN; *where: the first block that
// holds it.
static float scan(const float * x, int32_t n_vocab, int32_t n_blocks, int32_t * where) {
    float top    = -INFINITY;
    bool  is_bad = false;
    *where = 0;
    for (int32_t b = 0; b < n_blocks; b++) {
        const float best = scratch.best[b] = uma_largest(x + b * BLOCK, block_end(b, n_vocab) - b * BLOCK);
        is_bad |= isnan(best);
        if (best > top) {
            top    = best;
            *where = b;
        }
    }
    return is_bad ? NAN : top;
}

static int is_less(const void * a, const void * b) {
    const float x = *(const float *) a, y = *(const float *) b;
    return (x < y) - (x > y);
}

// Returns a logit that at least n_keep logits reach: the n_keep-th largest of the blocks' best ones.
static float reached_by(int32_t n_keep, int32_t n_blocks) {
    if (n_keep <= 0 || n_keep > n_blocks) {
        return -INFINITY;
    }
    memcpy(scratch.sorted, scratch.best, sizeof(float) * (size_t) n_blocks);
    qsort(scratch.sorted, (size_t) n_blocks, sizeof(float), is_less);
    return scratch.sorted[n_keep - 1];
}

static bool is_in(const uint32_t * bits, llama_token id) { return bits[id / WORD] >> (id % WORD) & 1; }

static bool has_marks(int32_t block) {
    uint32_t any = 0;
    for (int32_t i = 0; i < BLOCK / WORD; i++) {
        any |= scratch.marks[block * (BLOCK / WORD) + i];
    }
    return any != 0;
}

// Collects the candidates that reach `floor` and those that are set apart, in order of their ids.
static size_t collect(const float * x, int32_t n_vocab, int32_t n_blocks, float floor, int32_t n_apart) {
    size_t n = 0;
    for (int32_t b = 0; b < n_blocks; b++) {
        const bool is_mixed = n_apart && has_marks(b);
        if (scratch.best[b] < floor && !is_mixed) {
            continue;
        }
        for (int32_t i = b * BLOCK; i < block_end(b, n_vocab); i++) {
            scratch.candidates[n] = (llama_token_data) { i, x[i], 0.0f };
            n += x[i] >= floor || (is_mixed && x[i] > -INFINITY && is_in(scratch.marks, i));
        }
    }
    return n;
}

// -- tokens that the chain may move: they are candidates whatever their logits are, and distances do not count from
// them

// Takes these tokens out of the row. Returns their number, negated if one of their logits is NaN or infinite.
static int32_t set_apart(float * row, const uma_sampler * s) {
    int32_t n = 0;
    bool is_bad = false;
    for (int32_t i = 0; i < s->n_recent; i++) {
        const llama_token id = s->recent[i];
        if (!is_in(scratch.marks, id)) {
            scratch.marks[id / WORD] |= 1u << (id % WORD);
            scratch.apart[n++] = (llama_token_data) { id, row[id], 0.0f };
            is_bad |= !(row[id] < INFINITY);
            row[id] = -INFINITY;
        }
    }
    return is_bad ? -n : n;
}

static void put_back(float * row, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        row[scratch.apart[i].id] = scratch.apart[i].logit;
    }
}

static void unmark(int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        scratch.marks[scratch.apart[i].id / WORD] = 0;
    }
}

// -- one draw

static llama_token best_of(const float * row, int32_t n_vocab, int32_t n_blocks) {
    int32_t block;
    const float top = scan(row, n_vocab, n_blocks, &block);
    if (!isfinite(top)) {
        return -1;
    }
    int32_t i = block * BLOCK;
    while (row[i] != top) {
        i++;
    }
    return i;
}

// `left`: the candidates that the chain left.
static llama_token draw(float * row, int32_t n_vocab, uma_sampler * s, llama_token_data_array * left) {
    const int32_t n_blocks = (n_vocab + BLOCK - 1) / BLOCK;
    *left = (llama_token_data_array) { scratch.candidates, 0, -1, false };
    if (!s || !s->chain) {
        return best_of(row, n_vocab, n_blocks);
    }
    int32_t block;
    const int32_t n_signed = s->n_recent ? set_apart(row, s) : 0, n_apart = abs(n_signed);
    const float   top      = scan(row, n_vocab, n_blocks, &block);
    const bool    is_good  = n_signed >= 0 && !isnan(top) && top < INFINITY;
    put_back(row, n_apart);
    if (is_good) {
        const float floor = fmaxf(top - s->keep_within, reached_by(s->n_keep, n_blocks));
        left->size = collect(row, n_vocab, n_blocks, fmaxf(floor, -FLT_MAX), n_apart);
    }
    unmark(n_apart);
    const bool is_drawn = left->size && uma_chain_apply(s->chain, left);
    if (!is_drawn || left->selected < 0 || left->selected >= (int64_t) left->size
        || isnan(left->data[left->selected].p)) {
        return -1;
    }
    const llama_token token = left->data[left->selected].id;
    // llama.cpp's infill sampler may select an end of text that is not a candidate
    return row[token] > -INFINITY ? token : best_of(row, n_vocab, n_blocks);
}

// Returns the row without the tokens that the mask refuses, word by word: most words refuse all their tokens, or none.
static float * without_refused(const float * row, int32_t n_vocab, const uint32_t * mask) {
    for (int32_t i = 0; i < n_vocab; i += WORD) {
        const int32_t  n    = n_vocab - i < WORD ? n_vocab - i : WORD;
        const uint32_t bits = mask[i / WORD];
        if (bits == UINT32_MAX) {
            memcpy(scratch.masked + i, row + i, sizeof(float) * (size_t) n);
            continue;
        }
        for (int32_t j = 0; j < n; j++) {
            scratch.masked[i + j] = -INFINITY;
        }
        for (int32_t j = 0; bits && j < n; j++) {
            if (bits >> j & 1) {
                scratch.masked[i + j] = row[i + j];
            }
        }
    }
    return scratch.masked;
}

static llama_token draw_allowed(float * row, int32_t n_vocab, uma_sampler * s, llama_token_data_array * left) {
    if (!s->mask) {
        return draw(row, n_vocab, s, left);
    }
    if (!s->masks_first) {
        const llama_token token = draw(row, n_vocab, s, left);
        if (token < 0 || is_in(s->mask, token)) {
            return token;
        }
    }
    return draw(without_refused(row, n_vocab, s->mask), n_vocab, s, left);
}

// Returns the forced token, which is known before the row is. Only its log probabilities, if they are wanted, need the
// row.
static llama_token give(const float * logits, int32_t n_vocab, uma_sampler * s) {
    if (s->forced >= n_vocab) {
        return -1;
    }
    if (s->logprobs && s->logprobs->is_after) {
        uma_logprobs_after(s->logprobs, NULL, s->forced);
    } else if (s->logprobs) {
        if (!isfinite(uma_largest(logits, n_vocab))) {
            return -1;
        }
        uma_logprobs_before(s->logprobs, logits, n_vocab, s->forced);
    }
    return uma_sampler_accept(s, s->forced) ? s->forced : -1;
}

llama_token uma_sample(float * logits, int32_t n_vocab, uma_sampler * s) {
    llama_token_data_array left;
    if (s && s->forced >= 0) {
        return give(logits, n_vocab, s);
    }
    if (!reserve(n_vocab, s ? s->n_edits : 0)) {
        return -1;
    }
    if (!s) {
        return draw(logits, n_vocab, NULL, &left);
    }
    for (int32_t i = 0; i < s->n_edits; i++) {
        scratch.edited[i] = logits[s->edits[i].token];
        logits[s->edits[i].token] += s->edits[i].bias;
    }
    const llama_token token = draw_allowed(logits, n_vocab, s, &left);
    for (int32_t i = s->n_edits; i-- > 0;) {
        logits[s->edits[i].token] = scratch.edited[i];
    }
    if (token >= 0 && s->logprobs && s->logprobs->is_after) {
        uma_logprobs_after(s->logprobs, s->takes_best ? NULL : &left, token);
    } else if (token >= 0 && s->logprobs) {
        if (s->mask && !isfinite(uma_largest(logits, n_vocab))) {
            return -1; // a token that the mask refuses has a bad logit, which no draw has seen
        }
        uma_logprobs_before(s->logprobs, logits, n_vocab, token);
    }
    return token >= 0 && uma_sampler_accept(s, token) ? token : -1;
}

static void note_recent(uma_sampler * s, llama_token token) {
    if (s->n_recent_most) {
        s->recent[s->oldest] = token;
        s->oldest   = (s->oldest + 1) % s->n_recent_most;
        s->n_recent = s->n_recent < s->n_recent_most ? s->n_recent + 1 : s->n_recent;
    }
}

bool uma_sampler_accept(uma_sampler * s, llama_token token) {
    note_recent(s, token);
    return !s->chain || uma_chain_accept(s->chain, token);
}

bool uma_sampler_accept_all(uma_sampler * s, const llama_token * tokens, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        if (!uma_sampler_accept(s, tokens[i])) {
            return false;
        }
    }
    return true;
}

static bool counts(struct llama_sampler * link) {
    const char * name = llama_sampler_name(link);
    return strcmp(name, "penalties") == 0 || strcmp(name, "dry") == 0;
}

bool uma_sampler_recount(uma_sampler * s, const llama_token * tokens, int32_t n) {
    s->n_recent = s->oldest = 0;
    for (int32_t i = 0; i < n; i++) {
        note_recent(s, tokens[i]);
    }
    for (int32_t k = 0; s->chain && k < llama_sampler_chain_n(s->chain); k++) {
        struct llama_sampler * link = llama_sampler_chain_get(s->chain, k);
        if (!counts(link)) {
            continue;
        }
        llama_sampler_reset(link);
        for (int32_t i = 0; i < n; i++) {
            if (!uma_chain_accept(link, tokens[i])) {
                return false;
            }
        }
    }
    return true;
}

static bool is_given(const uma_sampler * s) { return s->forced >= 0 && !s->logprobs; }

bool uma_takes_best(const uma_sampler * s) { return !s || is_given(s) || (!s->chain && !s->raises && !s->logprobs); }

bool uma_allows(const uma_sampler * s, llama_token token) {
    if (!s) {
        return true;
    }
    for (int32_t i = 0; i < s->n_edits; i++) {
        if (s->edits[i].token == token) {
            return false; // its logit was lowered: another token may be better now
        }
    }
    return !s->mask || is_in(s->mask, token);
}
