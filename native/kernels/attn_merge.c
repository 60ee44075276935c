// Merging partial attention results by their log-sum-exp.
#include "kernels.h"

#include <math.h>
#include <string.h>

static const struct uma_attn_part * part_at(const struct uma_attn_part * parts, size_t stride, int i) {
    return (const struct uma_attn_part *)(const void *)((const char *)parts + (size_t)i * stride);
}

void uma_attn_merge(const struct uma_attn_part * parts, size_t part_stride, const float * out, size_t out_stride, int n_parts, int dim_v,
                    const float * sink, float * y) {
    float max = sink ? *sink : -INFINITY;
    for (int i = 0; i < n_parts; i++) max = fmaxf(max, part_at(parts, part_stride, i)->max);
    memset(y, 0, (size_t)dim_v * 4);
    if (!(max > -INFINITY)) return;
    float sum = sink ? expf(*sink - max) : 0;
    for (int i = 0; i < n_parts; i++) {
        const struct uma_attn_part * p = part_at(parts, part_stride, i);
        if (!(p->sum > 0)) continue;
        const float weight = expf(p->max - max);
        const float * o = (const float *)(const void *)((const char *)out + (size_t)i * out_stride);
        sum += weight * p->sum;
        for (int d = 0; d < dim_v; d++) y[d] += weight * o[d];
    }
    const float inverse = 1.0f / sum;
    for (int d = 0; d < dim_v; d++) y[d] *= inverse;
}
