// llama.cpp's samplers throw exceptions that C cannot catch: when memory runs out, or when a vector is asked for a
// negative size.
#include "sample.h"

bool uma_chain_apply(llama_sampler * chain, llama_token_data_array * candidates) {
    try {
        llama_sampler_apply(chain, candidates);
        return true;
    } catch (...) {
        return false;
    }
}

bool uma_chain_accept(llama_sampler * chain, llama_token token) {
    try {
        llama_sampler_accept(chain, token);
        return true;
    } catch (...) {
        return false;
    }
}
