// Memory for repacked weights, as the interface of a ggml buffer type.
#pragma once

#include "op.h"

extern const ggml_backend_buffer_type_i uma_repacked_interface;

// 0: weights of this type or shape are not repacked.
size_t uma_repacked_bytes(const ggml_tensor * weights);
