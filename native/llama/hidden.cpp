// The hidden states that prediction heads and EAGLE 3 models read, from a llama.cpp context.
//
// llama.cpp declares these four functions in llama-ext.h, in C++, and does not promise to keep them. The pinned version
// has them. A library without them cannot be linked, and one that has them is checked by its version.
#include "llama.h"

extern "C" {
#include "llama/uma_llama.h"
}

LLAMA_API void    llama_set_embeddings_nextn(struct llama_context * ctx, bool value, bool masked);
LLAMA_API float * llama_get_embeddings_nextn(struct llama_context * ctx);
LLAMA_API void    llama_set_embeddings_layer_inp(struct llama_context * ctx, uint32_t lid, bool value);
LLAMA_API float * llama_get_embeddings_layer_inp(struct llama_context * ctx, uint32_t lid);

namespace {

// True for the state after the last layer, which the output matrix is multiplied with.
bool is_last(const struct llama_context * ctx, int32_t layer) {
    return layer == llama_model_n_layer(llama_get_model(ctx));
}

} // namespace

void uma_hidden_keep(struct llama_context * ctx, int32_t layer) {
    if (is_last(ctx, layer)) {
        llama_set_embeddings_nextn(ctx, true, false);
    } else {
        llama_set_embeddings_layer_inp(ctx, static_cast<uint32_t>(layer), true);
    }
}

const float * uma_hidden_rows(struct llama_context * ctx, int32_t layer) {
    return is_last(ctx, layer) ? llama_get_embeddings_nextn(ctx)
                               : llama_get_embeddings_layer_inp(ctx, static_cast<uint32_t>(layer));
}
