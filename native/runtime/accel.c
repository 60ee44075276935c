// Our kernels in ggml's CPU backend, as the bindings see them.
#include "runtime/uma_runtime.h"

#include "ggml-uma/uma_ggml.h"
#include "kernels/kernels.h"

int32_t      uma_accel_use(const char * isa) { return uma_kernels_use(isa); }
int32_t      uma_accel_register(void)     { return uma_ggml_register(); }
void         uma_accel_enable(uint32_t ops) { uma_ggml_enable(ops); }
const char * uma_accel_isa(void)          { return uma_ggml_isa(); }
size_t       uma_accel_repacked_bytes(const struct ggml_tensor * weights) { return uma_ggml_repacked_bytes(weights); }
int32_t      uma_accel_repacked_version(void) { return UMA_REPACKED_VERSION; }
ggml_backend_buffer_type_t uma_accel_repacked_type(void) { return uma_ggml_repacked_type(); }
bool         uma_accel_multiplies(const struct ggml_tensor * weights) { return uma_ggml_multiplies(weights) != 0; }
