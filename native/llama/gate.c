// The eval callback of a decode context. In normal work it never asks for data. In other modes it finds the
// KV cache's tensors in the graph (their writers are GGML_OP_SET_ROWS), or stops the graph at its first node,
// so that llama_decode does its bookkeeping (cells, positions) without computing anything.
#include "llama/uma_llama.h"

#include "ggml-backend.h"

#include <stdio.h>
#include <string.h>

enum { OPEN, MARK, DISCOVER };

static void note_cache_write(uma_gate * gate, struct ggml_tensor * t) {
    struct ggml_tensor * root = t->view_src ? t->view_src : t->src[2];
    while (root && root->view_src) {
        root = root->view_src;
    }
    int layer = -1;
    char kind = 0;
    if (!root || sscanf(root->name, "cache_%c_l%d", &kind, &layer) != 2 || layer < 0 || layer >= 512) {
        gate->is_foreign = 1;
        return;
    }
    // A transposed V is written element by element (rows of one): positions are not rows there.
    if (t->ne[0] != root->ne[0]) {
        gate->is_foreign = 1;
        return;
    }
    struct ggml_tensor ** slot = kind == 'k' ? &gate->k[layer] : &gate->v[layer];
    if (*slot && *slot != root) {
        gate->is_foreign = 1; // two caches for one layer: sliding-window models
    }
    *slot = root;
}

static void copy_hidden(uma_gate * gate, struct ggml_tensor * t) {
    const int64_t n = ggml_nelements(t);
    if (t->type == GGML_TYPE_F32 && ggml_is_contiguous(t) && gate->n_hidden + n <= gate->hidden_max) {
        ggml_backend_tensor_get(t, gate->hidden + gate->n_hidden, 0, ggml_nbytes(t));
        gate->n_hidden += n;
    }
}

bool uma_gate_takes_hidden(uma_gate * gate, struct ggml_tensor * t, bool ask) {
    if (!gate->hidden || strcmp(t->name, "result_norm") != 0) {
        return false;
    }
    if (!ask) {
        copy_hidden(gate, t);
    }
    return true;
}

bool uma_gate_cb(struct ggml_tensor * t, bool ask, void * user) {
    uma_gate * gate = user;
    if (gate->mode == MARK) {
        return ask; // ask for the first node of every split, then stop the split there
    }
    if (ask && gate->mode == DISCOVER && t->op == GGML_OP_SET_ROWS) {
        note_cache_write(gate, t);
    }
    return uma_gate_takes_hidden(gate, t, ask) ? ask : !ask; // nothing after the hidden states is needed
}

int32_t uma_kv_mark(struct llama_context * ctx, uma_gate * gate, llama_seq_id seq_id, llama_pos pos0, int32_t n) {
    llama_token    token[n];
    llama_pos      pos[n];
    int32_t        n_seq_id[n];
    llama_seq_id * seq[n];
    int8_t         want[n];
    for (int32_t i = 0; i < n; i++) {
        token[i]    = 0;
        pos[i]      = pos0 + i;
        n_seq_id[i] = 1;
        seq[i]      = &seq_id;
        want[i]     = 0;
    }
    struct llama_batch batch = {
        .n_tokens = n, .token = token, .pos = pos, .n_seq_id = n_seq_id, .seq_id = seq, .logits = want,
    };
    gate->mode = MARK;
    const int32_t rc = llama_decode(ctx, batch);
    gate->mode = OPEN;
    return rc;
}
