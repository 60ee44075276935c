// What a custom operation's node calls.
#pragma once

#include "ggml-impl.h"

#include <string.h>

// A node's parameters are s32 words, and may lie where a pointer may not.
static inline struct ggml_custom_op_params uma_custom_of(const struct ggml_tensor * t) {
    struct ggml_custom_op_params custom;
    memcpy(&custom, t->op_params, sizeof(custom));
    return custom;
}
