// Prediction heads (MTP) of a model, in a context of their own (LLAMA_CONTEXT_TYPE_MTP). A row is a token and the last
// hidden state of the position before it; what comes out says which token follows the row's.
//
// llama.h has no call for the hidden states that a head gives, which its next row needs, so the eval callback takes them
// from the graph, by the name that all of llama.cpp's graphs with heads give them.
#include "llama/uma_llama.h"

#include "ggml-backend.h"

#include <stdlib.h>
#include <string.h>

bool uma_heads_cb(struct ggml_tensor * t, bool ask, void * user) {
    uma_heads * h = user;
    if (strcmp(t->name, "h_nextn") != 0) {
        return !ask;
    }
    if (!ask && t->type == GGML_TYPE_F32 && t->ne[0] == h->n_embd && t->ne[1] > 0) {
        ggml_backend_tensor_get(t, h->state, (size_t) (t->ne[1] - 1) * t->nb[1], (size_t) h->n_embd * sizeof(float));
        h->has_state = true;
    }
    return true;
}

int32_t uma_heads_decode(struct llama_context * ctx, uma_heads * h, const llama_token * token, const float * states,
    int32_t n, llama_pos pos0, llama_seq_id seq_id) {
    llama_pos *     pos      = malloc((size_t) n * sizeof(*pos));
    int32_t *       n_seq_id = malloc((size_t) n * sizeof(*n_seq_id));
    llama_seq_id ** seq      = malloc((size_t) n * sizeof(*seq));
    int8_t *        want     = calloc((size_t) n, sizeof(*want));
    int32_t         rc       = -2; // as llama_decode says it of a failure that is not the batch's
    if (pos && n_seq_id && seq && want) {
        for (int32_t i = 0; i < n; i++) {
            pos[i]      = pos0 + i;
            n_seq_id[i] = 1;
            seq[i]      = &seq_id;
        }
        want[n - 1] = 1;
        // llama_decode writes to neither.
        struct llama_batch batch = {
            .n_tokens = n, .token = (llama_token *) (uintptr_t) token, .embd = (float *) (uintptr_t) states,
            .pos = pos, .n_seq_id = n_seq_id, .seq_id = seq, .logits = want,
        };
        h->has_state = false;
        h->token     = -1;
        rc = llama_decode(ctx, batch);
    }
    free(pos);
    free(n_seq_id);
    free(seq);
    free(want);
    if (rc == 0) {
        float * logits = llama_get_logits_ith(ctx, n - 1);
        if (logits && h->has_state) {
            h->token = uma_sample(logits, llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx))), NULL);
        }
    }
    return rc;
}
