// Vector primitives: AVX2 with FMA and F16C, and AVX-VNNI if V_HAS_VNNI is defined before. vec_portable.h says what
// each primitive does.
#ifndef UMA_VEC_H
#define UMA_VEC_H

#ifdef V_HAS_VNNI
#define V_TARGET "avx2,fma,f16c,avxvnni"
#else
#define V_TARGET "avx2,fma,f16c"
#endif
#include "vec_target_x86.h"

#define V_LANES 8
// The sums of one sub-block stay in registers, but not all sums of earlier sub-blocks do. In return, twice as many rows
// share the work of loading a weight, unpacking its bits and finding its magnitude. (2 cores, weights in memory,
// products of 6, 8, 16 and 32 rows, compared with 4 rows per tile and up to 8 in place. On a Zen 3 they take 0.77,
// 0.85, 0.79 and 0.81 of that time by Q8_0, 0.76, 0.84, 0.81 and 0.84 by Q4_K, and 0.80, 0.82, 0.76 and 0.83 by Q6_K.
// On a Xeon they take 0.83, 0.86, 0.82 and 0.97 by Q4_K, and 0.82, 0.86, 1.01 and 1.05 by Q6_K; with AVX-VNNI 0.78,
// 0.78, 0.68 and 0.80 by Q4_K, and 0.79, 0.91, 0.94 and 1.03 by Q5_K.)
#define V_TILE_ROWS 8
#define V_ROWS_BY_TWO 6
#ifdef V_HAS_VNNI
#define V_QUANT_PANELS 1
#define V_FEW_PANELS 1
#else
// Two panels share each load of activations, of which a core has two per cycle. (One core of a Zen 3, weights in a
// cache: 2, 3, 4, 5, 6, 10 and 12 rows by Q8_0 take 1.00, 0.91, 0.95, 0.93, 0.95, 0.94 and 0.93 of the time; 7 and 8
// rows, which one tile of one panel holds, would take 1.02 and 1.01.)
#define V_QUANT_PANELS 2
#define V_FEW_PANELS 2
#define V_FETCHES_ONCE // see fetch_line
#endif
#define V_MOST_IN_PLACE 32
#define V_FETCHES_AT_ONCE // see is_spread
#define V_MIN_ROWS 1 // as fast as ggml, and a row's result does not depend on how many other rows a call has
#define V_BLOCK_COLS 2
#define V_DIRECT_ROWS 3
#define V_SUM_STRIDES { 1, 2, 4 }
#define V_DIRECT_QUERIES 0

typedef __m256 vf;
typedef __m256i vi;

static inline vf vf_load(const float * p) { return _mm256_loadu_ps(p); }
static inline void vf_store(float * p, vf a) { _mm256_storeu_ps(p, a); }
static inline void vf_store_n(float * p, vf a, int n) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    _mm256_maskstore_ps(p, _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane), a);
}
static inline vf vf_set1(float x) { return _mm256_set1_ps(x); }
static inline vf vf_bcast(const float * p) { return _mm256_broadcast_ss(p); }
static inline vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
static inline vf vf_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
static inline vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
static inline vf vf_div(vf a, vf b) { return _mm256_div_ps(a, b); }
static inline vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
static inline vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }
static inline vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
static inline vf vf_fnma(vf a, vf b, vf c) { return _mm256_fnmadd_ps(a, b, c); }
static inline vf vf_round(vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline vf vf_from_vi(vi a) { return _mm256_cvtepi32_ps(a); }
static inline vi vi_from_vf(vf a) { return _mm256_cvtps_epi32(a); }
static inline vf vf_from_bits(vi a) { return _mm256_castsi256_ps(a); }
static inline vf vf_keep_from(vf y, vf x, float limit) {
    return _mm256_and_ps(y, _mm256_cmp_ps(x, _mm256_set1_ps(limit), _CMP_GE_OQ));
}

static inline float vf_sum(vf a) {
    __m128 v = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    v = _mm_add_ps(v, _mm_movehl_ps(v, v));
    return _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)));
}
static inline float vf_max_lane(vf a) {
    __m128 v = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    v = _mm_max_ps(v, _mm_movehl_ps(v, v));
    return _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)));
}
static inline vf vf_sums(const vf v[8]) {
    const vf a = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
    const vf b = _mm256_hadd_ps(_mm256_hadd_ps(v[4], v[5]), _mm256_hadd_ps(v[6], v[7]));
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}

static inline vi vi_load(const void * p) { return _mm256_loadu_si256(p); }
static inline void vi_store(void * p, vi a) { _mm256_storeu_si256(p, a); }
static inline vi vi_set1(int32_t x) { return _mm256_set1_epi32(x); }
static inline vi vi_bcast(const void * p) { return _mm256_set1_epi32((int32_t)uma_u32(p)); }
static inline vi vi_add(vi a, vi b) { return _mm256_add_epi32(a, b); }
static inline vi vi_sub(vi a, vi b) { return _mm256_sub_epi32(a, b); }
static inline vi vi_and(vi a, vi b) { return _mm256_and_si256(a, b); }
static inline vi vi_or(vi a, vi b) { return _mm256_or_si256(a, b); }
#define vi_srl(a, n) _mm256_srli_epi32(a, n)
#define vi_sll(a, n) _mm256_slli_epi32(a, n)
#define vi_sra(a, n) _mm256_srai_epi32(a, n)

static inline vf vf_load_f16(const void * p) { return _mm256_cvtph_ps(_mm_loadu_si128(p)); }
static inline vf vf_bcast_f16(const void * p) { return _mm256_set1_ps(_cvtsh_ss(uma_u16(p))); }
static inline vf vf_load_s8(const void * p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p))); }
static inline vi vi_load_u8(const void * p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64(p)); }
static inline vf vf_load_bf16(const void * p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16));
}
static inline vi vi_lookup(vi table, vi at) { return _mm256_shuffle_epi8(table, at); }

static inline void vi_rows16(vi out[4], const uint8_t * p, size_t stride) {
    vi r[4];
    for (int i = 0; i < 4; i++) {
        const uint8_t * row = p + (size_t)i * stride;
        const __m128i low = _mm_loadu_si128((const void *)row),
            high = _mm_loadu_si128((const void *)(row + 4 * stride));
        r[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
    }
    const vi a = _mm256_unpacklo_epi32(r[0], r[1]), b = _mm256_unpackhi_epi32(r[0], r[1]);
    const vi c = _mm256_unpacklo_epi32(r[2], r[3]), d = _mm256_unpackhi_epi32(r[2], r[3]);
    out[0] = _mm256_unpacklo_epi64(a, c);
    out[1] = _mm256_unpackhi_epi64(a, c);
    out[2] = _mm256_unpacklo_epi64(b, d);
    out[3] = _mm256_unpackhi_epi64(b, d);
}

static inline __m128i rows4_half(const uint8_t * p, size_t stride) {
    __m128i v = _mm_cvtsi32_si128((int)uma_u32(p));
    v = _mm_insert_epi32(v, (int)uma_u32(p + stride), 1);
    v = _mm_insert_epi32(v, (int)uma_u32(p + 2 * stride), 2);
    return _mm_insert_epi32(v, (int)uma_u32(p + 3 * stride), 3);
}
static inline vi vi_rows4(const uint8_t * p, size_t stride) {
    return _mm256_set_m128i(rows4_half(p + 4 * stride, stride), rows4_half(p, stride));
}

static inline vf vf_rows_f16(const uint8_t * p, size_t stride) {
    __m128i v = _mm_cvtsi32_si128(uma_u16(p));
    v = _mm_insert_epi16(v, uma_u16(p + stride), 1);
    v = _mm_insert_epi16(v, uma_u16(p + 2 * stride), 2);
    v = _mm_insert_epi16(v, uma_u16(p + 3 * stride), 3);
    v = _mm_insert_epi16(v, uma_u16(p + 4 * stride), 4);
    v = _mm_insert_epi16(v, uma_u16(p + 5 * stride), 5);
    v = _mm_insert_epi16(v, uma_u16(p + 6 * stride), 6);
    v = _mm_insert_epi16(v, uma_u16(p + 7 * stride), 7);
    return _mm256_cvtph_ps(v);
}

#ifdef V_HAS_VNNI
#define V_S8_BIAS 128
static inline vi vi_bias_s8(vi w) { return _mm256_xor_si256(w, _mm256_set1_epi8((char)0x80)); }
static inline vi vi_dot_s8(vi acc, vi w, vi x) { return _mm256_dpbusd_avx_epi32(acc, w, x); }
static inline vi vi_dot_u6(vi acc, vi w, vi x) { return _mm256_dpbusd_avx_epi32(acc, w, x); }
#else
#define V_S8_BIAS 0
#define V_HAS_PAIRS
static inline vi vi_bias_s8(vi w) { return w; }
static inline vi vi_pairs_u6(vi acc, vi w, vi x) {
    acc = _mm256_add_epi16(acc, _mm256_maddubs_epi16(w, x));
    __asm__("" : "+x"(acc)); // see vi_dot_s16
    return acc;
}
static inline vi vi_dot_s16(vi acc, vi a, vi b) {
    acc = _mm256_add_epi32(acc, _mm256_madd_epi16(a, b));
    // otherwise gcc adds the products of a sub-block in pairs first, and 16 registers do not hold them
    __asm__("" : "+x"(acc));
    return acc;
}
// The pair sums of maddubs fit into 16 bits: 2 * 128 * 127 here, 2 * 63 * 127 below.
static inline vi vi_pairs_s8(vi w, vi x) {
    return _mm256_maddubs_epi16(_mm256_sign_epi8(w, w), _mm256_sign_epi8(x, w));
}
static inline vi vi_dot_s8(vi acc, vi w, vi x) {
    return vi_dot_s16(acc, vi_pairs_s8(w, x), _mm256_set1_epi16(1));
}
static inline vi vi_dot_u6(vi acc, vi w, vi x) {
    return vi_dot_s16(acc, _mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1));
}
static inline vi vi_load_s8_twice(const void * p) {
    const __m256i upper = _mm256_setr_epi8(-1, 0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3,
        -1, 4, -1, 4, -1, 5, -1, 5, -1, 6, -1, 6, -1, 7, -1, 7);
    long long bytes;
    memcpy(&bytes, p, 8);
    return _mm256_srai_epi16(_mm256_shuffle_epi8(_mm256_set1_epi64x(bytes), upper), 8);
}
static inline vi vi_load_s8_pairs(const void * p) {
    const __m128i v = _mm_loadu_si128(p);
    return _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(v, _mm_srli_si128(v, 8)));
}
#endif

#endif
