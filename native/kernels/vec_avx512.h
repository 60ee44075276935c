// Vector primitives: AVX-512 F/BW/DQ/VL, and VNNI if V_HAS_VNNI is defined before. vec_portable.h says what each
// primitive does.
#ifndef UMA_VEC_H
#define UMA_VEC_H

#ifdef V_HAS_VNNI
#define V_TARGET "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma,f16c"
#else
#define V_TARGET "avx512f,avx512bw,avx512dq,avx512vl,fma,f16c"
#endif
#include "vec_target_x86.h"

#define V_LANES 16
#define V_TILE_ROWS 8  // activation rows kept in registers at once
#define V_ROWS_BY_TWO 6
#define V_QUANT_PANELS 2
#define V_FEW_PANELS 1
#define V_MOST_IN_PLACE 32
#define V_MIN_ROWS 1
#define V_BLOCK_COLS 4 // vectors per row in a register block of f32 products
#define V_DIRECT_ROWS 6
#define V_SUM_STRIDES { 2, 1, 8, 4 }
#define V_DIRECT_QUERIES 7 // 7 times 4 sums and 4 vectors of keys fill all 32 registers

typedef __m512 vf;
typedef __m512i vi;

static inline vf vf_load(const float * p) { return _mm512_loadu_ps(p); }
static inline void vf_store(float * p, vf a) { _mm512_storeu_ps(p, a); }
static inline void vf_store_n(float * p, vf a, int n) { _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), a); }
static inline vf vf_set1(float x) { return _mm512_set1_ps(x); }
static inline vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
static inline vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
static inline vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
static inline vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
static inline vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
static inline vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
static inline vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline vf vf_fnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); }
static inline float vf_sum(vf a) { return _mm512_reduce_add_ps(a); }
static inline float vf_max_lane(vf a) { return _mm512_reduce_max_ps(a); }
static inline vf vf_from_vi(vi a) { return _mm512_cvtepi32_ps(a); }
static inline vi vi_from_vf(vf a) { return _mm512_cvtps_epi32(a); }
static inline vf vf_from_bits(vi a) { return _mm512_castsi512_ps(a); }
static inline vf vf_round(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline vf vf_keep_from(vf y, vf x, float limit) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_GE_OQ), y);
}

static inline vf vf_sums(const vf v[16]) {
    vf a[8], b[4], c[2];
    for (int i = 0; i < 8; i++)
        a[i] = _mm512_add_ps(_mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]), _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]));
    for (int i = 0; i < 4; i++) {
        const __m512d x = _mm512_castps_pd(a[2 * i]), y = _mm512_castps_pd(a[2 * i + 1]);
        b[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    }
    for (int i = 0; i < 2; i++)
        c[i] = _mm512_add_ps(_mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0x44),
            _mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0xee));
    return _mm512_add_ps(_mm512_shuffle_f32x4(c[0], c[1], 0x88), _mm512_shuffle_f32x4(c[0], c[1], 0xdd));
}

// Stores the sums of four vectors.
static inline void vf_store_sums4(float * out, const vf v[4]) {
    const vf a = _mm512_add_ps(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
    const vf b = _mm512_add_ps(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
    const __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
    const vf c = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    const __m256 d = _mm256_add_ps(_mm512_castps512_ps256(c), _mm512_extractf32x8_ps(c, 1));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(d), _mm256_extractf128_ps(d, 1)));
}

static inline vi vi_load(const void * p) { return _mm512_loadu_si512(p); }
static inline vi vi_bcast(const void * p) { int32_t x; memcpy(&x, p, 4); return _mm512_set1_epi32(x); }
static inline vf vf_bcast(const float * p) { return _mm512_set1_ps(*p); }
static inline void vi_store(void * p, vi a) { _mm512_storeu_si512(p, a); }
static inline vi vi_set1(int32_t x) { return _mm512_set1_epi32(x); }
static inline vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
static inline vi vi_sub(vi a, vi b) { return _mm512_sub_epi32(a, b); }
static inline vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
static inline vi vi_or(vi a, vi b) { return _mm512_or_si512(a, b); }
#define vi_srl(a, n) _mm512_srli_epi32(a, n)
#define vi_sll(a, n) _mm512_slli_epi32(a, n)
#define vi_sra(a, n) _mm512_srai_epi32(a, n)

static inline vf vf_load_f16(const void * p) { return _mm512_cvtph_ps(_mm256_loadu_si256(p)); }
static inline vf vf_bcast_f16(const void * p) { return _mm512_set1_ps(_cvtsh_ss(uma_u16(p))); }
static inline vf vf_load_s8(const void * p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p))); }
static inline vi vi_load_u8(const void * p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128(p)); }
static inline vf vf_load_bf16(const void * p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)), 16));
}
static inline vi vi_lookup(vi table, vi at) { return _mm512_shuffle_epi8(table, at); }

static inline void vi_rows16(vi out[4], const uint8_t * p, size_t stride) {
    vi r[4];
    for (int i = 0; i < 4; i++) {
        const uint8_t * row = p + (size_t)i * stride;
        vi a = _mm512_castsi128_si512(_mm_loadu_si128((const void *)row));
        a = _mm512_mask_broadcast_i32x4(a, 0x00f0, _mm_loadu_si128((const void *)(row + 4 * stride)));
        a = _mm512_mask_broadcast_i32x4(a, 0x0f00, _mm_loadu_si128((const void *)(row + 8 * stride)));
        r[i] = _mm512_mask_broadcast_i32x4(a, 0xf000, _mm_loadu_si128((const void *)(row + 12 * stride)));
    }
    const vi a = _mm512_unpacklo_epi32(r[0], r[1]), b = _mm512_unpackhi_epi32(r[0], r[1]);
    const vi c = _mm512_unpacklo_epi32(r[2], r[3]), d = _mm512_unpackhi_epi32(r[2], r[3]);
    out[0] = _mm512_unpacklo_epi64(a, c);
    out[1] = _mm512_unpackhi_epi64(a, c);
    out[2] = _mm512_unpacklo_epi64(b, d);
    out[3] = _mm512_unpackhi_epi64(b, d);
}

// Built by inserts: a vector load over 16 fresh scalar stores would stall.
static inline __m128i rows4_quarter(const uint8_t * p, size_t stride) {
    __m128i v = _mm_cvtsi32_si128((int)uma_u32(p));
    v = _mm_insert_epi32(v, (int)uma_u32(p + stride), 1);
    v = _mm_insert_epi32(v, (int)uma_u32(p + 2 * stride), 2);
    return _mm_insert_epi32(v, (int)uma_u32(p + 3 * stride), 3);
}

static inline vi vi_rows4(const uint8_t * p, size_t stride) {
    vi v = _mm512_castsi128_si512(rows4_quarter(p, stride));
    v = _mm512_inserti32x4(v, rows4_quarter(p + 4 * stride, stride), 1);
    v = _mm512_inserti32x4(v, rows4_quarter(p + 8 * stride, stride), 2);
    return _mm512_inserti32x4(v, rows4_quarter(p + 12 * stride, stride), 3);
}

static inline __m128i rows2_half(const uint8_t * p, size_t stride) {
    __m128i v = _mm_cvtsi32_si128(uma_u16(p));
    v = _mm_insert_epi16(v, uma_u16(p + stride), 1);
    v = _mm_insert_epi16(v, uma_u16(p + 2 * stride), 2);
    v = _mm_insert_epi16(v, uma_u16(p + 3 * stride), 3);
    v = _mm_insert_epi16(v, uma_u16(p + 4 * stride), 4);
    v = _mm_insert_epi16(v, uma_u16(p + 5 * stride), 5);
    v = _mm_insert_epi16(v, uma_u16(p + 6 * stride), 6);
    return _mm_insert_epi16(v, uma_u16(p + 7 * stride), 7);
}

static inline vf vf_rows_f16(const uint8_t * p, size_t stride) {
    return _mm512_cvtph_ps(_mm256_set_m128i(rows2_half(p + 8 * stride, stride), rows2_half(p, stride)));
}

#ifdef V_HAS_VNNI
#define V_S8_BIAS 128 // signed weights are stored plus 128, because the dot product takes unsigned weights
static inline vi vi_bias_s8(vi w) { return _mm512_xor_si512(w, _mm512_set1_epi8((char)0x80)); }
static inline vi vi_dot_s8(vi acc, vi w, vi x) { return _mm512_dpbusd_epi32(acc, w, x); }
static inline vi vi_dot_u6(vi acc, vi w, vi x) { return _mm512_dpbusd_epi32(acc, w, x); }

// acc + the dot product of each lane of w with the same four bytes at x, which the instruction itself reads. GCC would
// emit two instructions, and the processor would look only half as far ahead. (With one instruction, steps of 4 and 8
// rows by Q4_K_M take 0.97 of the time.)
#define V_HAS_DOT_AT
#define V_HAS_SPARSE_FETCH // see fetch_sparsely
typedef int32_t __attribute__((may_alias)) four_bytes;
V_INLINE vi vi_dot_at(vi acc, vi w, const int8_t * x) {
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*(const four_bytes *)(const void *)x));
    return acc;
}
#else
#define V_S8_BIAS 0
#define V_HAS_PAIRS
static inline vi vi_bias_s8(vi w) { return w; }
static inline vi vi_pairs_u6(vi acc, vi w, vi x) { return _mm512_add_epi16(acc, _mm512_maddubs_epi16(w, x)); }
static inline vi vi_dot_s16(vi acc, vi a, vi b) { return _mm512_add_epi32(acc, _mm512_madd_epi16(a, b)); }
static inline vi vi_pairs_s8(vi w, vi x) {
    const vi signed_x = _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(w), _mm512_setzero_si512(), x);
    return _mm512_maddubs_epi16(_mm512_abs_epi8(w), signed_x);
}
static inline vi vi_dot_s8(vi acc, vi w, vi x) {
    return vi_dot_s16(acc, vi_pairs_s8(w, x), _mm512_set1_epi16(1));
}
static inline vi vi_dot_u6(vi acc, vi w, vi x) {
    return vi_dot_s16(acc, _mm512_maddubs_epi16(w, x), _mm512_set1_epi16(1));
}
static inline vi vi_load_s8_twice(const void * p) {
    const vi v = _mm512_cvtepi8_epi32(_mm_loadu_si128(p));
    return _mm512_mask_blend_epi16(0xaaaaaaaa, v, _mm512_slli_epi32(v, 16));
}
static inline vi vi_load_s8_pairs(const void * p) {
    const vi low = _mm512_cvtepi8_epi32(_mm_loadu_si128(p)),
        high = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p + 1));
    return _mm512_mask_blend_epi16(0xaaaaaaaa, low, _mm512_slli_epi32(high, 16));
}
#endif

#endif
