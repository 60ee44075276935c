// ggml's quantised blocks as bytes: their sizes, the offsets of their parts, and how many weights share a scale.
// Source: ggml-common.h.
#ifndef UMA_BLOCKS_H
#define UMA_BLOCKS_H

#include "kernels.h"

#include <string.h>

#define V_INLINE static inline __attribute__((always_inline))
#ifndef V_UNROLL // programs that only check results define it as nothing: they compile faster
#define V_UNROLL _Pragma("GCC unroll 16")
#endif

enum {
    Q8_0_BYTES = 34, Q8_0_QS = 2,                                            // f16 d; 32 x s8
    // f16 d; 16 bytes: element i low, i + 16 high; offset 8
    Q4_0_BYTES = 18, Q4_0_QS = 2,
    Q4_1_BYTES = 20, Q4_1_QS = 4,                                            // f16 d, f16 m (added); 16 bytes as Q4_0
    // f16 d; bit i of 32: fifth bit of element i; 16 bytes; offset 16
    Q5_0_BYTES = 22, Q5_0_QH = 2, Q5_0_QS = 6,
    // f16 d, f16 m (added); fifth bits; 16 bytes
    Q5_1_BYTES = 24, Q5_1_QH = 4, Q5_1_QS = 8,
    // f16 d, f16 dmin; 12 bytes of 6-bit scales and mins; 128 bytes
    Q4_K_BYTES = 144, Q4_K_DMIN = 2, Q4_K_SCALES = 4, Q4_K_QS = 16,
    // as Q4_K, with 32 bytes: bit s of byte i is for column 32 s + i
    Q5_K_BYTES = 176, Q5_K_QH = 16, Q5_K_QS = 48,
    // ql[128], qh[64], 16 x s8 scales, f16 d; offset 32
    Q6_K_BYTES = 210, Q6_K_QH = 128, Q6_K_SCALES = 192, Q6_K_D = 208,
    // f16 d; 16 bytes of indices into UMA_IQ4_VALUES, as Q4_0
    IQ4_NL_BYTES = 18, IQ4_NL_QS = 2,
    // f16 d; 8 scales in 6 bits, offset 32; 8 x 16 bytes as IQ4_NL
    IQ4_XS_BYTES = 136, IQ4_XS_HIGH = 2, IQ4_XS_LOW = 4, IQ4_XS_QS = 8,
    // E8M0 scale; 16 bytes of indices into UMA_FP4_VALUES, as Q4_0
    MXFP4_BYTES = 17, MXFP4_QS = 1,
    Q8_K_WEIGHTS = 256,
};

// The values that four bits stand for: in IQ4_NL and IQ4_XS, and in MXFP4 (E2M1, doubled).
static const int8_t UMA_IQ4_VALUES[16] = { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 };
static const int8_t UMA_FP4_VALUES[16] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 };

// Facts about a weight type that packing activations and unpacking weights must agree on.
struct uma_type_info {
    int block;       // weights per block of the file format
    int block_bytes;
    int sub;         // weights that share one scale in a panel
    int act_block;   // activations that share one scale: 32 as Q8_0, 256 as Q8_K
    int offset;      // subtracted from every unpacked weight
    int has_min;     // a minimum per sub-block instead of an offset
    int is_signed;   // unpacked weights are s8
    int bits;        // bits of a repacked weight
    int n_halves;    // f16 scales of a repacked block ...
    int n_bytes;     // ... and its scales of one byte
};

// This is a table, not a switch: products read it several times per chunk, and gcc turns a switch into a separate
// function and calls it. (Zen 4, 2 cores, AVX-512 VNNI, measured alternately: products of 4 and 8 rows by Q4_K take
// 0.98 and 0.99 of the time; products by Q8_0 take the same time.)
static inline struct uma_type_info uma_type_info(enum uma_type type) {
    static const struct uma_type_info infos[UMA_N_TYPES] = {
        // block, bytes, sub, acts, offset, min, signed, bits, halves, bytes
        [UMA_Q8_0] = { 32, Q8_0_BYTES, 32, 32, 0, 0, 1, 8, 1, 0 },
        [UMA_Q4_0] = { 32, Q4_0_BYTES, 32, 32, 8, 0, 0, 4, 1, 0 },
        [UMA_Q4_1] = { 32, Q4_1_BYTES, 32, 32, 0, 1, 0, 4, 2, 0 },
        [UMA_Q5_0] = { 32, Q5_0_BYTES, 32, 32, 16, 0, 0, 5, 1, 0 },
        [UMA_Q5_1] = { 32, Q5_1_BYTES, 32, 32, 0, 1, 0, 5, 2, 0 },
        [UMA_Q4_K] = { 256, Q4_K_BYTES, 32, 256, 0, 1, 0, 4, 2, 16 },
        [UMA_Q5_K] = { 256, Q5_K_BYTES, 32, 256, 0, 1, 0, 5, 2, 16 },
        [UMA_Q6_K] = { 256, Q6_K_BYTES, 16, 256, 32, 0, 0, 6, 1, 16 },
        [UMA_IQ4_NL] = { 32, IQ4_NL_BYTES, 32, 32, 0, 0, 1, 4, 1, 0 },
        [UMA_IQ4_XS] = { 256, IQ4_XS_BYTES, 32, 256, 0, 0, 1, 4, 1, 8 },
        [UMA_MXFP4] = { 32, MXFP4_BYTES, 32, 32, 12, 0, 0, 4, 0, 1 }, // unpacked to its table's values plus 12
        [UMA_F16] = { 1, 2, 1, 1, 0, 0, 0, 16, 0, 0 },
        [UMA_BF16] = { 1, 2, 1, 1, 0, 0, 0, 16, 0, 0 },
        [UMA_F32] = { 1, 2, 1, 1, 0, 0, 0, 16, 0, 0 },
    };
    return infos[type];
}

// True if a weight of 4 bits stands for a value of a table: one of the two above.
static inline int uma_has_table(enum uma_type type) {
    return type == UMA_IQ4_NL || type == UMA_IQ4_XS || type == UMA_MXFP4;
}

static inline int uma_is_float(enum uma_type type) { return type == UMA_F16 || type == UMA_BF16 || type == UMA_F32; }

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

static inline float uma_bf16_to_f32(uint16_t h) {
    const uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, 4);
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
