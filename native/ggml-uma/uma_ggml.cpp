// Our operations as an extra buffer type of ggml's CPU backend, which also holds repacked weights if a caller asks for
// them (repacked.cpp). It is C++ because ggml's CPU backend calls it through these two classes.
#include "uma_ggml.h"

#include "repacked.h"
#include "ggml-cpu.h"
#include "op.h"
#include "traits.h"

#include <atomic>
#include <cstring>

namespace {

struct op_functions {
    bool (*is_ours)(const ggml_tensor * op);
    size_t (*work_size)(int n_threads, const ggml_tensor * op);
    void (*compute)(const ggml_compute_params * params, ggml_tensor * op);
};

std::atomic<uint32_t> enabled{ 0 };
std::atomic<uint64_t> counts[UMA_GGML_N_OPS];

class traits final : public ggml::cpu::tensor_traits {
  public:
    traits(uma_ggml_op kind, op_functions functions) : kind(kind), functions(functions) {}

    bool is_ours(const ggml_tensor * op) const {
        const bool is_enabled = enabled.load(std::memory_order_relaxed) >> kind & 1;
        return (is_enabled || (kind != UMA_GGML_ATTENTION && uma_is_repacked(op->src[0]))) && functions.is_ours(op);
    }

    bool work_size(int n_threads, const ggml_tensor * op, size_t & size) override {
        size = functions.work_size(n_threads, op);
        return true;
    }

    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        if (params->ith == 0) counts[kind].fetch_add(1, std::memory_order_relaxed);
        functions.compute(params, op);
        return true;
    }

  private:
    uma_ggml_op  kind;
    op_functions functions;
};

traits mul_mat(UMA_GGML_MUL_MAT, { uma_mul_mat_is_ours, uma_mul_mat_work_size, uma_mul_mat_compute });
traits mul_mat_id(UMA_GGML_MUL_MAT_ID, { uma_mul_mat_id_is_ours, uma_mul_mat_id_work_size, uma_mul_mat_id_compute });
traits attention(UMA_GGML_ATTENTION, { uma_attention_is_ours, uma_attention_work_size, uma_attention_compute });

traits * traits_of(const ggml_tensor * op) {
    switch (op->op) {
        case GGML_OP_MUL_MAT: return &mul_mat;
        case GGML_OP_MUL_MAT_ID: return &mul_mat_id;
        case GGML_OP_FLASH_ATTN_EXT: return &attention;
        default: return nullptr;
    }
}

class operations final : public ggml::cpu::extra_buffer_type {
    // llama.cpp asks this when it places weights; none are placed here.
    bool supports_op(ggml_backend_dev_t, const ggml_tensor *) override { return false; }

    ggml::cpu::tensor_traits * get_tensor_traits(const ggml_tensor * op) override {
        traits * t = traits_of(op);
        return t && t->is_ours(op) ? t : nullptr;
    }
};

ggml_backend_buffer_type buffer_type = { uma_repacked_interface, nullptr, nullptr };

}  // namespace

int uma_ggml_register(void) {
    if (std::strcmp(uma_kernels()->name, "portable") == 0) return -1;
    static const bool is_registered = [] {
        static operations ops;
        buffer_type.device  = ggml_backend_reg_dev_get(ggml_backend_cpu_reg(), 0);
        buffer_type.context = &ops;
        ggml_backend_cpu_get_extra_buffer_types().push_back(&buffer_type);
        enabled = (1u << UMA_GGML_N_OPS) - 1;
        return true;
    }();
    return is_registered ? 0 : -1;
}

bool uma_is_repacked(const ggml_tensor * t) { return t->buffer && t->buffer->buft == &buffer_type; }

size_t uma_ggml_repacked_bytes(const ggml_tensor * weights) {
    return buffer_type.context ? uma_repacked_bytes(weights) : 0;
}

ggml_backend_buffer_type * uma_ggml_repacked_type(void) { return &buffer_type; }

void uma_ggml_enable(uint32_t ops) { enabled = ops; }

int uma_ggml_multiplies(const ggml_tensor * weights) {
    const bool is_on = buffer_type.context && (enabled.load() >> UMA_GGML_MUL_MAT & 1)
        && (enabled.load() >> UMA_GGML_MUL_MAT_ID & 1);
    return is_on && uma_type_of(weights->type) != UMA_N_TYPES && uma_can_read(weights, 1);
}

uint64_t uma_ggml_count(enum uma_ggml_op op) { return counts[op].load(std::memory_order_relaxed); }

const char * uma_ggml_isa(void) { return uma_kernels()->name; }
