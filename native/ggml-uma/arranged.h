// Memory for arranged weights, as the interface of a ggml buffer type.
#pragma once

#include "op.h"

extern const ggml_backend_buffer_type_i uma_arranged_interface;

// 0: weights of this type or shape are not arranged.
size_t uma_arranged_bytes(const ggml_tensor * weights);
