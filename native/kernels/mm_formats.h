// Reads one block of the file's format into plain numbers, from which weights are repacked. Source: ggml-quants.c,
// dequantize_row_*.
//
// Plain C over one row; it runs once per weight, when a model is loaded.
#ifndef UMA_MM_FORMATS_H
#define UMA_MM_FORMATS_H

#include "blocks.h"

// The scales of one block; uma_type_info says how many there are of each. A weight is scale * value, or scale * value -
// min.
struct block_scales {
    uint16_t halves[2]; // f16: d; then dmin, or m in formats that add it
    uint8_t bytes[16];  // 6-bit scales and then as many mins; or s8 scales; or the exponent of MXFP4
};

// Splits `n` bytes into nibbles: the low ones go to out, the high ones to out + apart.
static inline void split_nibbles(const uint8_t * q, int n, uint8_t * out, int apart) {
    for (int i = 0; i < n; i++) out[i] = q[i] & 15;
    for (int i = 0; i < n; i++) out[i + apart] = q[i] >> 4;
}

static inline void add_fifth_bits(uint32_t bits, uint8_t * out) {
    for (int i = 0; i < 32; i++) out[i] |= (uint8_t)((bits >> i & 1) << 4);
}

static inline void read_k_scales(const uint8_t * w, struct block_scales * s) {
    const uint8_t * p = w + Q4_K_SCALES;
    for (int j = 0; j < 4; j++) {
        s->bytes[j] = p[j] & 63;
        s->bytes[8 + j] = p[j + 4] & 63;
        s->bytes[4 + j] = (uint8_t)((p[j + 8] & 15) | (p[j] >> 6) << 4);
        s->bytes[12 + j] = (uint8_t)(p[j + 8] >> 4 | (p[j + 4] >> 6) << 4);
    }
}

static inline void read_q5_k(const uint8_t * w, uint8_t * out) {
    for (int i = 0; i < 4; i++) split_nibbles(w + Q5_K_QS + 32 * i, 32, out + 64 * i, 32);
    for (int s = 0; s < 8; s++) {
        for (int i = 0; i < 32; i++) out[32 * s + i] |= (uint8_t)((w[Q5_K_QH + i] >> s & 1) << 4);
    }
}

static inline void read_q6_k(const uint8_t * w, uint8_t * out) {
    for (int h = 0; h < 2; h++, out += 128) {
        const uint8_t * low = w + 64 * h, * high = w + Q6_K_QH + 32 * h;
        split_nibbles(low, 64, out, 64);
        for (int run = 0; run < 4; run++) {
            for (int i = 0; i < 32; i++) out[32 * run + i] |= (uint8_t)((high[i] >> (2 * run) & 3) << 4);
        }
    }
}

static inline void read_iq4_xs_scales(const uint8_t * w, struct block_scales * s) {
    const uint16_t high = uma_u16(w + IQ4_XS_HIGH);
    for (int j = 0; j < 8; j++) {
        const int low = w[IQ4_XS_LOW + j / 2] >> (4 * (j % 2)) & 15;
        s->bytes[j] = (uint8_t)((low | (high >> (2 * j) & 3) << 4) - 32);
    }
}

// Reads the block at w: its scales, and its values as they are in the file, into out[block]. Values are s8 for Q8_0,
// indices for formats with a table, otherwise unsigned.
static inline void read_block(enum uma_type type, const uint8_t * w, struct block_scales * s, uint8_t * out) {
    memcpy(s->halves, w, 2 * sizeof s->halves[0]); // most formats begin with them
    switch (type) {
        case UMA_Q8_0: memcpy(out, w + Q8_0_QS, 32); break;
        case UMA_Q4_0: split_nibbles(w + Q4_0_QS, 16, out, 16); break;
        case UMA_Q4_1: split_nibbles(w + Q4_1_QS, 16, out, 16); break;
        case UMA_Q5_0:
            split_nibbles(w + Q5_0_QS, 16, out, 16);
            add_fifth_bits(uma_u32(w + Q5_0_QH), out);
            break;
        case UMA_Q5_1:
            split_nibbles(w + Q5_1_QS, 16, out, 16);
            add_fifth_bits(uma_u32(w + Q5_1_QH), out);
            break;
        case UMA_Q4_K:
            for (int i = 0; i < 4; i++) split_nibbles(w + Q4_K_QS + 32 * i, 32, out + 64 * i, 32);
            read_k_scales(w, s);
            break;
        case UMA_Q5_K:
            read_q5_k(w, out);
            read_k_scales(w, s);
            break;
        case UMA_Q6_K:
            read_q6_k(w, out);
            memcpy(s->halves, w + Q6_K_D, 2);
            memcpy(s->bytes, w + Q6_K_SCALES, 16);
            break;
        case UMA_IQ4_NL: split_nibbles(w + IQ4_NL_QS, 16, out, 16); break;
        case UMA_IQ4_XS:
            for (int i = 0; i < 8; i++) split_nibbles(w + IQ4_XS_QS + 16 * i, 16, out + 32 * i, 16);
            read_iq4_xs_scales(w, s);
            break;
        case UMA_MXFP4:
            split_nibbles(w + MXFP4_QS, 16, out, 16);
            s->bytes[0] = w[0];
            break;
        default: break;
    }
}

#endif
