// The hot path: one decode call and one token per wanted row, as one C function, so that the GIL is released only once.
#include "llama/uma_llama.h"

#include <stdlib.h>
#include <unistd.h>

// Called while the GIL is free. Waking a thread takes tens of microseconds, and a woken thread that had to wait for the
// GIL would have to be woken again.
void uma_wake(int32_t fd) {
    static const uint64_t one = 1; // eventfd(2) needs 8 bytes; a socket takes them as well
    if (fd >= 0 && write(fd, &one, sizeof(one)) < 0) {
        return; // full: its reader wakes up anyway
    }
}

static bool is_drawn(const uma_rows * rows, int32_t i, int32_t row) {
    const int8_t want = rows->want[i];
    return want == UMA_WANT_TOKEN || (want == UMA_WANT_IF_ACCEPTED && row > 0 && rows->out[row - 1] == rows->token[i]);
}

void uma_draw_rows(const uma_rows * rows, uma_draw draw, void * logits) {
    for (int32_t i = 0, row = 0; i < rows->n; i++) {
        if (rows->want[i]) {
            rows->out[row] = is_drawn(rows, i, row) ? draw(logits, row, rows->sampler[row]) : UMA_NOT_DRAWN;
            row++;
        }
    }
}

typedef struct context_logits {
    float * logits; // (rows, n_vocab), NULL: there are none
    int32_t n_vocab;
} context_logits;

// Called once for all rows, which are in batch order: every call of a getter synchronises with the device.
static context_logits logits_of(struct llama_context * ctx) {
    return (context_logits) {
        llama_get_logits(ctx), llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx))) };
}

static llama_token draw(void * from, int32_t row, uma_sampler * sampler) {
    const context_logits * all = from;
    return all->logits ? uma_sample(all->logits + (int64_t) row * all->n_vocab, all->n_vocab, sampler) : -1;
}

llama_token uma_decode_draw(struct llama_context * ctx, int32_t row, uma_sampler * sampler) {
    context_logits all = logits_of(ctx);
    return draw(&all, row, sampler);
}

int32_t uma_decode(struct llama_context * ctx, uma_rows * rows) {
    uma_wake(rows->wake_fd);
    const int64_t t0 = uma_now_ns();
    // on the heap: the stack has room for some 600,000 rows, and a batch may have a million
    int32_t *       n_seq_id = malloc((size_t) rows->n * sizeof(*n_seq_id));
    llama_seq_id ** seq_id   = malloc((size_t) rows->n * sizeof(*seq_id));
    if (!n_seq_id || !seq_id) {
        free(n_seq_id);
        free(seq_id);
        return -2; // llama_decode's code for a failure that the batch did not cause
    }
    for (int32_t i = 0; i < rows->n; i++) {
        n_seq_id[i] = 1;
        seq_id[i]   = rows->seq_id + i;
    }
    struct llama_batch batch = {
        .n_tokens = rows->n, .token = rows->token, .pos = rows->pos,
        .n_seq_id = n_seq_id, .seq_id = seq_id, .logits = rows->want,
    };
    const int32_t rc = llama_decode(ctx, batch);
    free(n_seq_id);
    free(seq_id);
    if (rc == 0) {
        llama_synchronize(ctx);
    }
    const int64_t t1 = uma_now_ns();
    rows->call_ns   = t1 - t0;
    rows->sample_ns = 0;
    if (rc != 0) {
        return rc;
    }
    if (rows->out) {
        context_logits all = logits_of(ctx);
        uma_draw_rows(rows, draw, &all);
    }
    rows->sample_ns = uma_now_ns() - t1;
    return 0;
}
