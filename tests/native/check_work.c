// What a prompt's pieces are predicted from: the multiply-adds of custom operations in a graph. A sanitizer stops it at
// a read of a pointer where no pointer may lie.
#include "graph/uma_graph.h"

#include "ggml-impl.h"

#include <stdio.h>
#include <string.h>

static void other(struct ggml_tensor * dst, int ith, int nth, void * data) {
    (void) dst, (void) ith, (void) nth, (void) data;
}

int main(void) {
    const uma_recurrence layer = { .n_taps = 3, .n_channels = 10, .n_head = 2, .dim_k = 16, .dim_v = 4 };
    const struct { ggml_custom_op_t fun; int64_t ne0; double work; } ops[] = {
        { uma_convolution_op(), 10, 10 * 5 * 4 }, { uma_recur_op(), 8, 8 * 5 * 16 * 3 }, { other, 8, -1 },
    };
    for (size_t i = 0; i < sizeof(ops) / sizeof(*ops); i++) {
        struct ggml_tensor t = { .op = GGML_OP_CUSTOM, .ne = { ops[i].ne0, 5, 1, 1 } };
        const struct ggml_custom_op_params custom = { ops[i].fun, GGML_N_TASKS_MAX, (void *) (uintptr_t) &layer };
        memcpy(t.op_params, &custom, sizeof(custom));
        if (uma_recurrent_work(&t) != ops[i].work) {
            printf("operation %zu: %g instead of %g\n", i, uma_recurrent_work(&t), ops[i].work);
            return 1;
        }
    }
    return 0;
}
