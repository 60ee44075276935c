// ggml's quantised blocks as bytes: sizes, offsets of their parts and how wide a scale reaches. Source: ggml-common.h.
#ifndef UMA_BLOCKS_H
#define UMA_BLOCKS_H

#include "kernels.h"

#include <string.h>

#define V_INLINE static inline __attribute__((always_inline))
#define V_UNROLL _Pragma("GCC unroll 16")

enum {
    Q8_0_BYTES = 34, Q8_0_QS = 2,                                            // f16 d; 32 x s8
    Q4_0_BYTES = 18, Q4_0_QS = 2,                                            // f16 d; 16 bytes: element i low, i + 16 high; offset 8
    Q4_K_BYTES = 144, Q4_K_DMIN = 2, Q4_K_SCALES = 4, Q4_K_QS = 16,          // f16 d, f16 dmin; 12 bytes of 6-bit scales and mins; 128 bytes
    Q6_K_BYTES = 210, Q6_K_QH = 128, Q6_K_SCALES = 192, Q6_K_D = 208,        // ql[128], qh[64], 16 x s8 scales, f16 d; offset 32
    Q8_K_WEIGHTS = 256,
};

// Facts about a weight type that packing activations and unpacking weights must agree on.
struct uma_type_info {
    int block;       // weights per block of the file format
    int block_bytes;
    int sub;         // weights that share one scale in a panel
    int act_block;   // activations that share one scale: 32 as Q8_0, 256 as Q8_K
    int offset;      // subtracted from every unpacked weight
    int has_min;     // a minimum per sub-block instead of an offset
};

static inline struct uma_type_info uma_type_info(enum uma_type type) {
    switch (type) {
        case UMA_Q8_0: return (struct uma_type_info){ 32, Q8_0_BYTES, 32, 32, 0, 0 };
        case UMA_Q4_0: return (struct uma_type_info){ 32, Q4_0_BYTES, 32, 32, 8, 0 };
        case UMA_Q4_K: return (struct uma_type_info){ 256, Q4_K_BYTES, 32, 256, 0, 1 };
        case UMA_Q6_K: return (struct uma_type_info){ 256, Q6_K_BYTES, 16, 256, 32, 0 };
        default: return (struct uma_type_info){ 1, 2, 1, 1, 0, 0 };
    }
}

static inline float uma_f16_to_f32(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    const uint32_t bits = (uint32_t)(h & 0x7fff) << 13;
    uint32_t out;
    if (bits >= (31u << 23)) { // the exponent field is all ones: infinity or NaN
        out = bits + (224u << 23);
    } else if (bits >= (1u << 23)) {
        out = bits + (112u << 23);
    } else { // zero or subnormal: the integer value times 2^-24
        const float f = (float)(h & 0x7fff) * 5.9604644775390625e-8f;
        memcpy(&out, &f, 4);
    }
    out |= sign;
    float f;
    memcpy(&f, &out, 4);
    return f;
}

// Round to nearest, ties to even, as the hardware conversions do.
static inline float uma_round_f16(float f) {
    uint32_t x;
    memcpy(&x, &f, 4);
    const uint32_t mag = x & 0x7fffffff;
    if (mag >= 0x7f800000) return f;
    if (mag < 0x38800000) { // below the smallest normal: a multiple of 2^-24
        const float magic = 0.75f; // 1.5 * 2^-1: ulp is 2^-24
        const float m = (mag == 0 ? 0.0f : (f < 0 ? -f : f)) + magic - magic;
        return f < 0 ? -m : m;
    }
    x += 0xfff + ((x >> 13) & 1);
    x &= 0xffffe000;
    if ((x & 0x7fffffff) >= 0x47800000) x = (x & 0x80000000) | 0x7f800000;
    memcpy(&f, &x, 4);
    return f;
}

static inline uint32_t uma_u32(const uint8_t * p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

static inline uint16_t uma_u16(const uint8_t * p) {
    uint16_t v;
    memcpy(&v, p, 2);
    return v;
}

#endif
