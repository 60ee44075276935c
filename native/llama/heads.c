// Prediction heads of a model, in a context of their own: MTP layers (LLAMA_CONTEXT_TYPE_MTP) or an EAGLE 3 model. A
// row has a token and the state of the position before it; its output predicts the next token.
//
// llama.h has no call for the heads' states, which their next row needs, so the eval callback takes them from the graph
// by their names.
#include "llama/uma_llama.h"

#include "ggml-backend.h"

#include <stdlib.h>
#include <string.h>

// The state after the last row: llama.cpp's MTP graphs all give it the first name, EAGLE 3's the second.
static bool is_state(const char * name) {
    return strcmp(name, "h_nextn") == 0 || strcmp(name, "eagle3_prenorm-0") == 0;
}

bool uma_heads_cb(struct ggml_tensor * t, bool ask, void * user) {
    uma_heads * h = user;
    const bool is_fused = h->fused && strcmp(t->name, "fc_out") == 0;
    if (!is_fused && !is_state(t->name)) {
        return !ask;
    }
    const size_t row_bytes = (size_t) h->n_embd * sizeof(float);
    if (ask || t->type != GGML_TYPE_F32 || t->ne[0] != h->n_embd || t->ne[1] < 1) {
        return true;
    }
    if (!is_fused) {
        ggml_backend_tensor_get(t, h->state, (size_t) (t->ne[1] - 1) * t->nb[1], row_bytes);
        h->has_state = true;
    } else if (t->ne[1] == h->n_fused) {
        ggml_backend_tensor_get(t, h->fused, 0, (size_t) t->ne[1] * row_bytes);
        h->has_state = true;
    }
    return true;
}

// The parts of a llama_batch that both calls share.
typedef struct batch_parts {
    llama_pos *     pos;
    int32_t *       n_seq_id;
    llama_seq_id ** seq_id;
    int8_t *        want;
} batch_parts;

static void free_parts(batch_parts * p) {
    free(p->pos);
    free(p->n_seq_id);
    free(p->seq_id);
    free(p->want);
}

static bool make_parts(batch_parts * p, int32_t n, llama_pos pos0, llama_seq_id * seq_id) {
    *p = (batch_parts) {
        malloc((size_t) n * sizeof(*p->pos)), malloc((size_t) n * sizeof(*p->n_seq_id)),
        malloc((size_t) n * sizeof(*p->seq_id)), calloc((size_t) n, sizeof(*p->want)) };
    if (!p->pos || !p->n_seq_id || !p->seq_id || !p->want) {
        free_parts(p);
        return false;
    }
    for (int32_t i = 0; i < n; i++) {
        p->pos[i]      = pos0 + i;
        p->n_seq_id[i] = 1;
        p->seq_id[i]   = seq_id;
    }
    p->want[n - 1] = 1;
    return true;
}

// llama.cpp only reads tokens and states, though its pointers are not const.
static struct llama_batch batch_of(
    const batch_parts * p, const llama_token * token, const float * states, int32_t n) {
    return (struct llama_batch) {
        .n_tokens = n, .token = (llama_token *) (uintptr_t) token, .embd = (float *) (uintptr_t) states,
        .pos = p->pos, .n_seq_id = p->n_seq_id, .seq_id = p->seq_id, .logits = p->want,
    };
}

enum { NO_MEMORY = -2 }; // llama_decode's code for a failure that the batch did not cause

int32_t uma_heads_decode(struct llama_context * ctx, uma_heads * h, const llama_token * token, const float * states,
    int32_t n, llama_pos pos0, llama_seq_id seq_id) {
    batch_parts parts;
    h->has_state = false;
    h->token     = -1;
    if (!make_parts(&parts, n, pos0, &seq_id)) {
        return NO_MEMORY;
    }
    const int32_t rc = llama_decode(ctx, batch_of(&parts, token, states, n));
    free_parts(&parts);
    float * logits = rc == 0 ? llama_get_logits_ith(ctx, n - 1) : NULL;
    if (logits && h->has_state) {
        h->token = uma_sample(logits, llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx))), NULL);
    }
    return rc;
}

int32_t uma_heads_fuse(struct llama_context * ctx, uma_heads * h, const float * states, int32_t n, float * fused) {
    batch_parts  parts;
    llama_seq_id seq_id = 0;
    // positions after those in the heads' memory: llama.cpp checks them, though nothing here reads or fills it
    const llama_pos pos0 = llama_memory_seq_pos_max(llama_get_memory(ctx), seq_id) + 1;
    if (!make_parts(&parts, n, pos0, &seq_id)) {
        return NO_MEMORY;
    }
    memset(parts.want, 1, (size_t) n); // llama_encode returns all rows, and warns of a row that is not marked
    h->has_state = false;
    h->fused     = fused;
    h->n_fused   = n;
    int32_t rc = llama_encode(ctx, batch_of(&parts, NULL, states, n));
    h->fused = NULL;
    free_parts(&parts);
    return rc == 0 && !h->has_state ? NO_MEMORY : rc;
}
