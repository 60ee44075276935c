// Merges partial attention results by their log-sum-exp, one after another. So the result depends only on the parts and
// their order.
#include "kernels.h"

#include <math.h>
#include <string.h>

void uma_attn_fold(struct uma_attn_part * sum, float * y, const struct uma_attn_part * part, const float * out,
    int dim_v) {
    if (part->sum == 0) return; // a NaN sum is added: it makes the result NaN
    if (sum->sum == 0) {
        *sum = *part;
        memcpy(y, out, (size_t)dim_v * 4);
        return;
    }
    const float max = fmaxf(sum->max, part->max), old = expf(sum->max - max), new = expf(part->max - max);
    *sum = (struct uma_attn_part){ max, sum->sum * old + part->sum * new };
    for (int d = 0; d < dim_v; d++) y[d] = y[d] * old + out[d] * new;
}

void uma_attn_finish(const struct uma_attn_part * sum, const float * out, int dim_v, const float * sink, float * y) {
    if (sum->sum == 0) {
        memset(y, 0, (size_t)dim_v * 4);
        return;
    }
    const float max = sink ? fmaxf(sum->max, *sink) : sum->max, weight = expf(sum->max - max);
    const float scale = weight / (sum->sum * weight + (sink ? expf(*sink - max) : 0));
    for (int d = 0; d < dim_v; d++) y[d] = out[d] * scale;
}

void uma_attn_merge(const struct uma_attn_part * parts, size_t part_stride, const float * out, size_t out_stride,
    int n_parts, int dim_v,
                    const float * sink, float * y) {
    struct uma_attn_part sum = { -INFINITY, 0 };
    for (int i = 0; i < n_parts; i++) {
        const struct uma_attn_part * part =
            (const struct uma_attn_part *)(const void *)((const char *)parts + (size_t)i * part_stride);
        uma_attn_fold(&sum, y, part, (const float *)(const void *)((const char *)out + (size_t)i * out_stride), dim_v);
    }
    uma_attn_finish(&sum, y, dim_v, sink, y);
}
