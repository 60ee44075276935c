// Weights are repacked when a model is loaded: they are stored in the order in which a product reads them, so that no
// call has to transpose anything.
//
// Panels of V_LANES weight rows follow each other; the last one is padded with zeros. A panel holds its scales, padded
// to 64 bytes, and then its weights. Each block of the file's format has scales [halves][lane] f16, then [bytes][lane].
// Weights are in vectors [lane][4]: byte b of lane l is column 4 g + b of row l, where g is the vector's group. 32
// columns (groups 0 to 7) take:
//   8 bits: 8 vectors, one for each group.
//   4 bits: 4 vectors; vector k has group k in its low and group k + 4 in its high nibbles.
//   5 bits: those 4, then one with the fifth bits: bit g is for group g.
// With 6 bits, 16 columns (groups 0 to 3) take 2 vectors with groups k and k + 2, then one with the high pairs: bits
// 2 g and 2 g + 1 are for group g.
//
// Any change of this layout must raise UMA_REPACKED_VERSION, because files of repacked weights are kept between starts.
#ifndef UMA_MM_REPACKED_H
#define UMA_MM_REPACKED_H

#include "cpu.h"
#include "mm_acts.h"
#include "mm_formats.h"
#include "mm_panel.h"

// How many bytes ahead of the product weights are prefetched: from memory, and from there into the first-level cache.
// The product begins after a panel's scales, so both distances count from the end of the scales. (Zen 4, 2 cores,
// AVX-512 VNNI, weights in memory, measured alternately: when the distances counted from the panel's beginning, the
// weights of long rows that are multiplied first were prefetched too late. With 8,192 columns, 1, 2, 4 and 8 rows take
// 0.89, 0.81, 0.72 and 0.84 of that time by Q4_K, 0.81, 0.81, 0.72 and 0.77 by Q6_K, and 0.97, 0.96, 0.89 and 0.82 by
// Q8_0; with 2,048 columns they take the same time as before. If AHEAD is 8 KiB, 2 rows by Q4_K take 0.85; if it is
// 16 KiB, they take 0.81.)
enum { AHEAD = 12288, SOON = 2048 };

// bytes of 32 columns
static inline size_t repacked_run(enum uma_type type) { return (size_t)uma_type_info(type).bits * 4 * V_LANES; }

static inline size_t block_scales_bytes(enum uma_type type) {
    const struct uma_type_info info = uma_type_info(type);
    return (size_t)(2 * info.n_halves + info.n_bytes) * V_LANES;
}

static inline size_t repacked_scales(enum uma_type type, int64_t n_in) {
    return ((size_t)(n_in / uma_type_info(type).block) * block_scales_bytes(type) + 63) & ~(size_t)63;
}

static inline size_t repacked_panel(enum uma_type type, int64_t n_in) {
    return repacked_scales(type, n_in) + (size_t)(n_in / 32) * repacked_run(type);
}

static size_t mm_repacked_bytes(enum uma_type type, int64_t n_out, int64_t n_in) {
    if (uma_is_float(type) || n_in % uma_type_info(type).block) return 0;
    return (size_t)((n_out + V_LANES - 1) / V_LANES) * repacked_panel(type, n_in);
}

// -- repacking: one lane of one block

static void put_scales(const struct uma_type_info * info, const struct block_scales * s, int lane, uint8_t * to) {
    for (int i = 0; i < info->n_halves; i++) memcpy(to + (size_t)(i * V_LANES + lane) * 2, s->halves + i, 2);
    to += 2 * info->n_halves * V_LANES;
    for (int i = 0; i < info->n_bytes; i++) to[i * V_LANES + lane] = s->bytes[i];
}

// Writes 4 * n_vectors bytes as one lane of n_vectors vectors.
static inline void put_lane(const uint8_t * bytes, int n_vectors, int lane, uint8_t * to) {
    for (int k = 0; k < n_vectors; k++) memcpy(to + (k * V_LANES + lane) * 4, bytes + 4 * k, 4);
}

static void put_32(int bits, const uint8_t * v, int lane, uint8_t * to) {
    uint8_t bytes[16];
    if (bits == 8) {
        for (int half = 0; half < 2; half++) {
            for (int i = 0; i < 16; i++) bytes[i] = (uint8_t)(v[16 * half + i] + V_S8_BIAS);
            put_lane(bytes, 4, lane, to + half * 16 * V_LANES);
        }
        return;
    }
    for (int i = 0; i < 16; i++) bytes[i] = (uint8_t)((v[i] & 15) | (v[i + 16] & 15) << 4);
    put_lane(bytes, 4, lane, to);
    if (bits == 4) return;
    for (int b = 0; b < 4; b++) {
        int high = 0;
        for (int g = 0; g < 8; g++) high |= (v[4 * g + b] >> 4) << g;
        bytes[b] = (uint8_t)high;
    }
    put_lane(bytes, 1, lane, to + 16 * V_LANES);
}

static void put_16_of_6_bits(const uint8_t * v, int lane, uint8_t * to) {
    uint8_t bytes[12];
    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)((v[i] & 15) | (v[i + 8] & 15) << 4);
    for (int b = 0; b < 4; b++)
        bytes[8 + b] = (uint8_t)(v[b] >> 4 | v[4 + b] >> 4 << 2 | v[8 + b] >> 4 << 4 | v[12 + b] >> 4 << 6);
    put_lane(bytes, 3, lane, to);
}

static void mm_repack(enum uma_type type, int64_t n_out, int64_t n_in, const void * weights, size_t stride,
    void * repacked) {
    const struct uma_type_info info = uma_type_info(type);
    const size_t panel = repacked_panel(type, n_in), run = repacked_run(type);
    for (int64_t out = 0; out < n_out; out++) {
        const uint8_t * w = (const uint8_t *)weights + (size_t)out * stride;
        uint8_t * to = (uint8_t *)repacked + (size_t)(out / V_LANES) * panel;
        const int lane = (int)(out % V_LANES);
        if (lane == 0 && n_out - out < V_LANES) memset(to, 0, panel);
        uint8_t * scales = to, * q = to + repacked_scales(type, n_in);
        for (int64_t b = 0; b < n_in / info.block; b++, w += info.block_bytes, scales += block_scales_bytes(type)) {
            struct block_scales s;
            uint8_t v[Q8_K_WEIGHTS];
            read_block(type, w, &s, v);
            put_scales(&info, &s, lane, scales);
            for (int i = 0; i < info.block / 32; i++, q += run) {
                if (info.bits != 6) {
                    put_32(info.bits, v + 32 * i, lane, q);
                } else {
                    put_16_of_6_bits(v + 32 * i, lane, q);
                    put_16_of_6_bits(v + 32 * i + 16, lane, q + run / 2);
                }
            }
        }
    }
}

// -- reading

static inline const uint8_t * repacked_at(const struct uma_mm * mm, int64_t out) {
    return (const uint8_t *)mm->w + (size_t)(out / V_LANES) * repacked_panel(mm->type, mm->n_in);
}

// `n` panels are multiplied at once. Each of them prefetches its counterpart among the `n` panels that follow.
static void start_repacked(const struct uma_mm * mm, int64_t out, int n, struct panel * p) {
    const size_t panel = repacked_panel(mm->type, mm->n_in), begin = repacked_scales(mm->type, mm->n_in),
        ahead = panel < begin + AHEAD ? panel : begin + AHEAD, soon = ahead < begin + SOON ? ahead : begin + SOON;
    for (int i = 0; i < n; i++) {
        p[i].lead = (size_t)(n - 1) * panel + ahead - soon;
        p[i].ahead = (uintptr_t)repacked_at(mm, out + i * V_LANES) + (size_t)(n - 1) * panel + ahead;
    }
}

// Multiplies n scales of one byte each by one f16 scale, into [n][lane] f32.
static inline void scale_bytes(float * out, vf d, const uint8_t * bytes, int n) {
    for (int i = 0; i < n; i++, bytes += V_LANES, out += V_LANES) vf_store(out, vf_mul(d, vf_load_s8(bytes)));
}

// Converts the scales of one block to the form that the product reads: f32, one for each sub-block. (E8M0 is halved,
// since the values of MXFP4 are doubled.)
V_INLINE void open_scales(const enum uma_type type, const uint8_t * w, float * scale, float * min) {
    const uint8_t * second = w + 2 * V_LANES, * bytes = w + 2 * uma_type_info(type).n_halves * V_LANES;
    switch (type) {
        case UMA_Q4_K:
        case UMA_Q5_K:
            scale_bytes(scale, vf_load_f16(w), bytes, 8);
            scale_bytes(min, vf_load_f16(second), bytes + 8 * V_LANES, 8);
            break;
        case UMA_Q6_K: scale_bytes(scale, vf_load_f16(w), bytes, 16); break;
        case UMA_IQ4_XS: scale_bytes(scale, vf_load_f16(w), bytes, 8); break;
        case UMA_MXFP4: vf_store(scale, vf_mul(vf_from_bits(vi_sll(vi_load_u8(bytes), 23)), vf_set1(0.5f))); break;
        case UMA_Q4_1:
        case UMA_Q5_1: vf_store(min, vf_sub(vf_set1(0), vf_load_f16(second))); // fall through
        default: vf_store(scale, vf_load_f16(w)); break;
    }
}

V_INLINE void open_all_scales(const enum uma_type type, const uint8_t * w, int64_t n_blocks, struct panel * p) {
    const int per_block = uma_type_info(type).block / uma_type_info(type).sub * V_LANES;
    for (int64_t b = 0; b < n_blocks; b++, w += block_scales_bytes(type))
        open_scales(type, w, p->scale + b * per_block, p->min + b * per_block);
}

// Unpacks groups 0 to 7 of 32 columns to bytes, for a product of the kind `kind_of_bytes`.
static inline void open_32(enum uma_type type, struct panel * p, const uint8_t * q, int64_t group) {
    const struct uma_type_info info = uma_type_info(type);
    struct fifth_bits fifth = { vi_set1(0), vi_set1(0) };
    if (info.bits == 5) fifth = fifth_bits_at(q + 16 * V_LANES);
    for (int k = 0; k < 4; k++) {
        vi low, high;
        nibbles(q + k * V_LANES * 4, &low, &high);
        if (info.bits == 5) {
            add_fifth(&fifth, &low, &high);
        } else if (uma_has_table(type)) {
            low = vi_lookup(p->table, low);
            high = vi_lookup(p->table, high);
        }
        put4(p, group + k, low);
        put4(p, group + 4 + k, high);
    }
}

// Returns a format's table as bytes for the product: its 16 values, repeated to fill the vector.
static inline vi table_of(enum uma_type type) {
    const int8_t * values = type == UMA_MXFP4 ? UMA_FP4_VALUES : UMA_IQ4_VALUES;
    const int added = type == UMA_MXFP4 ? uma_type_info(type).offset : V_S8_BIAS;
    uint8_t bytes[V_LANES * 4];
    for (int i = 0; i < V_LANES * 4; i++) bytes[i] = (uint8_t)(values[i % 16] + added);
    return vi_load(bytes);
}

// Converts the scales of n_blocks blocks. There is one loop for each type, so that the type is not checked per block.
static inline void open_scales_of(enum uma_type type, const uint8_t * scales, int64_t n_blocks, struct panel * p) {
    switch (type) {
        case UMA_Q4_K:
        case UMA_Q5_K: open_all_scales(UMA_Q4_K, scales, n_blocks, p); break;
        case UMA_Q6_K: open_all_scales(UMA_Q6_K, scales, n_blocks, p); break;
        case UMA_IQ4_XS: open_all_scales(UMA_IQ4_XS, scales, n_blocks, p); break;
        case UMA_MXFP4: open_all_scales(UMA_MXFP4, scales, n_blocks, p); break;
        case UMA_Q4_1:
        case UMA_Q5_1: open_all_scales(UMA_Q4_1, scales, n_blocks, p); break;
        default: open_all_scales(UMA_Q8_0, scales, n_blocks, p); break;
    }
}

// Prepares columns col..col+n-1 of the panel that starts at weight row `out`. They are multiplied in place, or unpacked
// to bytes.
static void open_repacked(const struct uma_mm * mm, int64_t out, int64_t col, int64_t n, bool is_in_place,
    struct panel * p) {
    const enum uma_type type = mm->type;
    const struct uma_type_info info = uma_type_info(type);
    const uint8_t * scales = repacked_at(mm, out) + (size_t)(col / info.block) * block_scales_bytes(type);
    const uint8_t * q = repacked_at(mm, out) + repacked_scales(type, mm->n_in) + (size_t)(col / 32)
        * repacked_run(type);
    if (is_summed_by_block(mm)) p->scales = scales;
    else open_scales_of(type, scales, n / info.block, p);
    if (uma_has_table(type)) p->table = table_of(type);
    const int per_32 = (int)(repacked_panel(type, mm->n_in) / (size_t)(mm->n_in / 32));
    if (is_in_place) {
        p->q = q;
        p->is_fetching = 1;
        p->is_sparse = V_FETCHES_SPARSELY && uma_cpu_is_amd();
        p->fetch = per_32 * info.sub / 32;
        return;
    }
    p->q = p->unpacked;
    for (int64_t b = 0; b < n / 32; b++, q += repacked_run(type)) {
        fetch_ahead(p, per_32);
        if (info.bits != 6) {
            open_32(type, p, q, b * 8);
            continue;
        }
        for (int h = 0; h < 2; h++) {
            vi v[4];
            six_bits(q + h * 12 * V_LANES, v);
            for (int g = 0; g < 4; g++) put4(p, b * 8 + h * 4 + g, v[g]);
        }
    }
}

#endif
