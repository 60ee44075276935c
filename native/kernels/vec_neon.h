// Vector primitives: AArch64 NEON. V_HAS_DOTPROD and V_HAS_I8MM, defined before, add those extensions. vec_portable.h
// says what each primitive does.
#ifndef UMA_VEC_H
#define UMA_VEC_H

// Before version 16, clang has these intrinsics only if the command line enables them. Otherwise their tables are plain
// NEON.
#if defined(__clang__) && __clang_major__ < 16
#if !defined(__ARM_FEATURE_MATMUL_INT8) || !defined(__ARM_FEATURE_DOTPROD)
#undef V_HAS_I8MM
#endif
#if !defined(__ARM_FEATURE_DOTPROD)
#undef V_HAS_DOTPROD
#endif
#endif

#if defined(V_HAS_I8MM)
#define V_TARGET "arch=armv8.2-a+dotprod+i8mm"
#define V_TARGET_CLANG "dotprod,i8mm"
#elif defined(V_HAS_DOTPROD)
#define V_TARGET "arch=armv8.2-a+dotprod"
#define V_TARGET_CLANG "dotprod"
#endif
#include "vec_target_arm.h"

#define V_LANES 4
#define V_TILE_ROWS 8
#define V_ROWS_BY_TWO 6
#define V_QUANT_PANELS 2
#define V_FEW_PANELS 1
#ifdef V_HAS_I8MM
#define V_MOST_IN_PLACE 0 // smmla needs bytes
#else
#define V_MOST_IN_PLACE 16
#endif
#define V_MIN_ROWS 2
#define V_BLOCK_COLS 4
#define V_DIRECT_ROWS 6
#define V_SUM_STRIDES { 1, 2 }
#define V_DIRECT_QUERIES 0

typedef float32x4_t vf;
typedef int32x4_t vi;

static inline vf vf_load(const float * p) { return vld1q_f32(p); }
static inline void vf_store(float * p, vf a) { vst1q_f32(p, a); }
static inline void vf_store_n(float * p, vf a, int n) { memcpy(p, &a, (size_t)n * 4); }
static inline vf vf_set1(float x) { return vdupq_n_f32(x); }
static inline vf vf_bcast(const float * p) { return vld1q_dup_f32(p); }
static inline vf vf_add(vf a, vf b) { return vaddq_f32(a, b); }
static inline vf vf_sub(vf a, vf b) { return vsubq_f32(a, b); }
static inline vf vf_mul(vf a, vf b) { return vmulq_f32(a, b); }
static inline vf vf_div(vf a, vf b) { return vdivq_f32(a, b); }
static inline vf vf_max(vf a, vf b) { return vmaxnmq_f32(a, b); } // if only one is NaN, the other one
static inline vf vf_min(vf a, vf b) { return vminq_f32(a, b); }
static inline vf vf_fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
static inline vf vf_fnma(vf a, vf b, vf c) { return vfmsq_f32(c, a, b); }
static inline vf vf_round(vf a) { return vrndnq_f32(a); }
static inline vf vf_from_vi(vi a) { return vcvtq_f32_s32(a); }
static inline vi vi_from_vf(vf a) { return vcvtnq_s32_f32(a); }
static inline vf vf_from_bits(vi a) { return vreinterpretq_f32_s32(a); }
static inline vf vf_keep_from(vf y, vf x, float limit) {
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(y), vcgeq_f32(x, vdupq_n_f32(limit))));
}
static inline float vf_sum(vf a) { return vaddvq_f32(a); }
static inline float vf_max_lane(vf a) { return vmaxvq_f32(a); }
static inline vf vf_sums(const vf v[4]) { return vpaddq_f32(vpaddq_f32(v[0], v[1]), vpaddq_f32(v[2], v[3])); }

static inline vi vi_load(const void * p) { return vreinterpretq_s32_u8(vld1q_u8(p)); }
static inline void vi_store(void * p, vi a) { vst1q_u8(p, vreinterpretq_u8_s32(a)); }
static inline vi vi_set1(int32_t x) { return vdupq_n_s32(x); }
static inline vi vi_bcast(const void * p) { return vdupq_n_s32((int32_t)uma_u32(p)); }
static inline vi vi_add(vi a, vi b) { return vaddq_s32(a, b); }
static inline vi vi_and(vi a, vi b) { return vandq_s32(a, b); }
static inline vi vi_sub(vi a, vi b) { return vsubq_s32(a, b); }
static inline vi vi_or(vi a, vi b) { return vorrq_s32(a, b); }
static inline vi vi_srl(vi a, int n) {
    return vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a), vdupq_n_s32(-n)));
}
static inline vi vi_sll(vi a, int n) { return vshlq_s32(a, vdupq_n_s32(n)); }
static inline vi vi_sra(vi a, int n) { return vshlq_s32(a, vdupq_n_s32(-n)); }

static inline vf vf_load_f16(const void * p) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p))); }
static inline vf vf_bcast_f16(const void * p) { return vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(uma_u16(p)))); }
static inline vf vf_load_s8(const void * p) {
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(uma_u32(p)))))));
}
static inline vf vf_load_bf16(const void * p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16));
}
static inline vi vi_load_u8(const void * p) {
    return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(uma_u32(p)))))));
}
static inline vi vi_lookup(vi table, vi at) {
    return vreinterpretq_s32_u8(vqtbl1q_u8(vreinterpretq_u8_s32(table), vreinterpretq_u8_s32(at)));
}

static inline void vi_rows16(vi out[4], const uint8_t * p, size_t stride) {
    const vi a = vi_load(p), b = vi_load(p + stride), c = vi_load(p + 2 * stride), d = vi_load(p + 3 * stride);
    const int64x2_t ab0 = vreinterpretq_s64_s32(vzip1q_s32(a, b)), ab1 = vreinterpretq_s64_s32(vzip2q_s32(a, b));
    const int64x2_t cd0 = vreinterpretq_s64_s32(vzip1q_s32(c, d)), cd1 = vreinterpretq_s64_s32(vzip2q_s32(c, d));
    out[0] = vreinterpretq_s32_s64(vzip1q_s64(ab0, cd0));
    out[1] = vreinterpretq_s32_s64(vzip2q_s64(ab0, cd0));
    out[2] = vreinterpretq_s32_s64(vzip1q_s64(ab1, cd1));
    out[3] = vreinterpretq_s32_s64(vzip2q_s64(ab1, cd1));
}
static inline vi vi_rows4(const uint8_t * p, size_t stride) {
    const uint32_t t[4] = { uma_u32(p), uma_u32(p + stride), uma_u32(p + 2 * stride), uma_u32(p + 3 * stride) };
    return vreinterpretq_s32_u32(vld1q_u32(t));
}
static inline vf vf_rows_f16(const uint8_t * p, size_t stride) {
    const uint16_t t[4] = { uma_u16(p), uma_u16(p + stride), uma_u16(p + 2 * stride), uma_u16(p + 3 * stride) };
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(t)));
}

#define V_S8_BIAS 0
static inline vi vi_bias_s8(vi w) { return w; }
static inline vi vi_dot_s8(vi acc, vi w, vi x) {
    const int8x16_t a = vreinterpretq_s8_s32(w), b = vreinterpretq_s8_s32(x);
#if defined(V_HAS_DOTPROD) || defined(V_HAS_I8MM)
    return vdotq_s32(acc, a, b);
#else
    const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b))),
        high = vpaddlq_s16(vmull_high_s8(a, b));
    return vaddq_s32(acc, vpaddq_s32(low, high));
#endif
}
static inline vi vi_dot_u6(vi acc, vi w, vi x) { return vi_dot_s8(acc, w, x); }

#endif
