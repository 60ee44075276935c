// Vector primitives in plain C. Every vec_*.h provides the same ones; the comments here say what each one does. vf
// holds V_LANES f32; vi holds V_LANES s32, or four times as many bytes.
#ifndef UMA_VEC_H
#define UMA_VEC_H

// Fused multiply-add is off. A compiler that may use it (-march=native) fuses different operations in tiles of
// different row counts, so a row's bits would depend on how many rows were computed at once.
#if defined(__clang__)
#pragma clang fp contract(off)
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off")
#endif

#include "blocks.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#define V_END          // ends the compiler's target section that the header began
#define V_LANES 8
#define V_TILE_ROWS 4  // activation rows kept in registers at once: 4 or 8
#define V_ROWS_BY_TWO 3  // activation rows kept in registers if two panels are multiplied at once
#define V_QUANT_PANELS 1 // quantised panels multiplied at once when there are many rows: 1 or 2, as registers allow
#define V_FEW_PANELS 1   // the same for few rows, and for weights of 4 bits in place
#define V_MOST_IN_PLACE 8 // up to this many rows, weights below 8 bits are unpacked per tile, not stored as bytes
#define V_MIN_ROWS 2     // with fewer rows these kernels are no faster than ggml
#define V_BLOCK_COLS 1 // vectors per row in a register block of f32 products
#define V_DIRECT_ROWS 3 // rows that products with f16, bf16 and f32 weights take at once: 3 or 6
// distances between the lanes that vf_sums adds, from its first step to its last; also for vf_store_sums4 if there is
// one
#define V_SUM_STRIDES { 1, 2, 4 }
#define V_DIRECT_QUERIES 0 // queries of a register block over rows that are not stored as f32; 0: rows are stored

typedef struct { float f[V_LANES]; } vf;
typedef union { int32_t i[V_LANES]; uint32_t u[V_LANES]; uint8_t b[V_LANES * 4]; int8_t s[V_LANES * 4]; } vi;

#define V_EACH for (int l = 0; l < V_LANES; l++)

static inline vf vf_load(const float * p) { vf r; memcpy(&r, p, sizeof r); return r; }
static inline void vf_store(float * p, vf a) { memcpy(p, &a, sizeof a); }
static inline void vf_store_n(float * p, vf a, int n) { memcpy(p, &a, (size_t)n * 4); } // the first n lanes
static inline vf vf_set1(float x) { vf r; V_EACH r.f[l] = x; return r; }
static inline vf vf_bcast(const float * p) { return vf_set1(*p); }
static inline vf vf_add(vf a, vf b) { V_EACH a.f[l] += b.f[l]; return a; }
static inline vf vf_sub(vf a, vf b) { V_EACH a.f[l] -= b.f[l]; return a; }
static inline vf vf_mul(vf a, vf b) { V_EACH a.f[l] *= b.f[l]; return a; }
static inline vf vf_div(vf a, vf b) { V_EACH a.f[l] /= b.f[l]; return a; }
// b where a is NaN
static inline vf vf_max(vf a, vf b) { V_EACH a.f[l] = a.f[l] > b.f[l] ? a.f[l] : b.f[l]; return a; }
static inline vf vf_min(vf a, vf b) { V_EACH a.f[l] = a.f[l] < b.f[l] ? a.f[l] : b.f[l]; return a; }
static inline vf vf_fma(vf a, vf b, vf c) { V_EACH a.f[l] = a.f[l] * b.f[l] + c.f[l]; return a; }  // a b + c
static inline vf vf_fnma(vf a, vf b, vf c) { V_EACH a.f[l] = c.f[l] - a.f[l] * b.f[l]; return a; } // c - a b
// to nearest, ties to even
static inline vf vf_round(vf a) { V_EACH a.f[l] = rintf(a.f[l]); return a; }
static inline vf vf_from_vi(vi a) { vf r; V_EACH r.f[l] = (float)a.i[l]; return r; }
static inline vi vi_from_vf(vf a) { vi r; V_EACH r.i[l] = (int32_t)rintf(a.f[l]); return r; }
static inline vf vf_from_bits(vi a) { vf r; memcpy(&r, &a, sizeof r); return r; }
// y in lanes with x >= limit, else 0
static inline vf vf_keep_from(vf y, vf x, float limit) { V_EACH y.f[l] = x.f[l] >= limit ? y.f[l] : 0; return y; }
static inline float vf_sum(vf a) { float r = 0; V_EACH r += a.f[l]; return r; }
static inline float vf_max_lane(vf a) { float r = a.f[0]; V_EACH r = a.f[l] > r ? a.f[l] : r; return r; }
static inline float vf_tree(const float * f) {
    return ((f[0] + f[1]) + (f[2] + f[3])) + ((f[4] + f[5]) + (f[6] + f[7]));
}
// lane l: the sum of v[l]
static inline vf vf_sums(const vf v[V_LANES]) { vf r; V_EACH r.f[l] = vf_tree(v[l].f); return r; }

static inline vi vi_load(const void * p) { vi r; memcpy(&r, p, sizeof r); return r; }
static inline void vi_store(void * p, vi a) { memcpy(p, &a, sizeof a); }
static inline vi vi_set1(int32_t x) { vi r; V_EACH r.i[l] = x; return r; }
static inline vi vi_bcast(const void * p) { int32_t x; memcpy(&x, p, 4); return vi_set1(x); } // 4 bytes to every lane
static inline vi vi_add(vi a, vi b) { V_EACH a.u[l] += b.u[l]; return a; }
static inline vi vi_and(vi a, vi b) { V_EACH a.u[l] &= b.u[l]; return a; }
static inline vi vi_sub(vi a, vi b) { V_EACH a.u[l] -= b.u[l]; return a; }
static inline vi vi_or(vi a, vi b) { V_EACH a.u[l] |= b.u[l]; return a; }
static inline vi vi_srl(vi a, int n) { V_EACH a.u[l] >>= n; return a; }
static inline vi vi_sll(vi a, int n) { V_EACH a.u[l] <<= n; return a; }
static inline vi vi_sra(vi a, int n) { V_EACH a.i[l] >>= n; return a; } // keeps the sign

static inline vf vf_load_f16(const void * p) {
    vf r; V_EACH r.f[l] = uma_f16_to_f32(uma_u16((const uint8_t *)p + 2 * l)); return r;
}
static inline vf vf_bcast_f16(const void * p) { return vf_set1(uma_f16_to_f32(uma_u16(p))); }
static inline vf vf_load_s8(const void * p) { vf r; V_EACH r.f[l] = ((const int8_t *)p)[l]; return r; }
static inline vf vf_load_bf16(const void * p) {
    vf r; V_EACH r.f[l] = uma_bf16_to_f32(uma_u16((const uint8_t *)p + 2 * l)); return r;
}
// one byte a lane
static inline vi vi_load_u8(const void * p) { vi r; V_EACH r.i[l] = ((const uint8_t *)p)[l]; return r; }
// bytes below 16
static inline vi vi_lookup(vi table, vi at) {
    vi r; for (int b = 0; b < V_LANES * 4; b++) r.b[b] = table.b[at.b[b]]; return r;
}

// 16 bytes of each of V_LANES rows, transposed: lane l of out[j] is bytes 4j..4j+3 of row l.
static inline void vi_rows16(vi out[4], const uint8_t * p, size_t stride) {
    for (int j = 0; j < 4; j++) V_EACH out[j].u[l] = uma_u32(p + (size_t)l * stride + 4 * j);
}
static inline vi vi_rows4(const uint8_t * p, size_t stride) {
    vi r; V_EACH r.u[l] = uma_u32(p + (size_t)l * stride); return r;
}
static inline vf vf_rows_f16(const uint8_t * p, size_t stride) {
    vf r; V_EACH r.f[l] = uma_f16_to_f32(uma_u16(p + (size_t)l * stride)); return r;
}

// Signed weights are stored plus V_S8_BIAS, for processors whose dot product takes unsigned weights only.
#define V_S8_BIAS 0
static inline vi vi_bias_s8(vi w) { return w; }
// acc + the dot product of 4 signed or unsigned (at most 63) weight bytes and 4 signed bytes, per lane.
static inline vi vi_dot_s8(vi acc, vi w, vi x) {
    for (int b = 0; b < V_LANES * 4; b++) acc.i[b / 4] += w.s[b] * x.s[b];
    return acc;
}
static inline vi vi_dot_u6(vi acc, vi w, vi x) { return vi_dot_s8(acc, w, x); }
// If V_HAS_PAIRS is defined there are also these, with twice as many s16 lanes: vi_pairs_s8, the sums of pairs of such
// products; vi_pairs_u6, acc + those; vi_dot_s16, acc + the sums of two products of s16; vi_load_s8_twice, the s8 of
// each lane at p, in both s16 of the lane; and vi_load_s8_pairs, the s8 of each lane at p and at p + V_LANES.

#endif
