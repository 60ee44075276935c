// Weights arranged beforehand as panels: what a product reads lies in the order in which it is read, so that no call transposes anything.
//
// Panel after panel of V_LANES weight rows, the last one padded with zeros. A panel: scales [columns / 32][lane] f16, padded to 64 bytes; then
// per 32 columns the unpacked bytes of mm_panel.h (q8_0: [8][lane][4]), or those of the file before nibbles are parted (q4_0: [4][lane][4]).
#ifndef UMA_MM_ARRANGED_H
#define UMA_MM_ARRANGED_H

#include "cpu.h"
#include "mm_panel.h"

// How far ahead weights are fetched: memory's latency at the speed of one core, and little enough to be in time after a pause.
// Weights that are multiplied where they lie drive no unpacked panel out of the first-level cache; yet what two panels fetch ahead must leave
// room there for activations. In 48 KiB it does: a step of two rows takes 1.07 of one, from the second level 1.10. In 32 KiB it does not: three
// rows take 1.03 to 1.24, from the second level 1.00 to 1.03.
enum { AHEAD_MOST = 8192, NEAR_MOST = 6144, NEAR_CACHE = 48 << 10 };

static inline size_t arranged_run(enum uma_type type) { return type == UMA_Q8_0 ? 32 * V_LANES : 16 * V_LANES; } // bytes of 32 columns

static inline size_t arranged_scales(int64_t n_in) { return ((size_t)(n_in / 32) * V_LANES * 2 + 63) & ~(size_t)63; }

static inline size_t arranged_panel(enum uma_type type, int64_t n_in) { return arranged_scales(n_in) + (size_t)(n_in / 32) * arranged_run(type); }

static size_t mm_arranged_bytes(enum uma_type type, int64_t n_out, int64_t n_in) {
    if (type != UMA_Q8_0 && type != UMA_Q4_0) return 0;
    return (size_t)((n_out + V_LANES - 1) / V_LANES) * arranged_panel(type, n_in);
}

// 32 columns of V_LANES weight rows.
static void arrange_block(enum uma_type type, const uint8_t * w, size_t stride, uint8_t * scales, uint8_t * q) {
    vi v[4];
    for (size_t i = 0; i < V_LANES; i++) memcpy(scales + 2 * i, w + i * stride, 2);
    vi_rows16(v, w + 2, stride);
    for (int j = 0; j < 4; j++) vi_store(q + j * V_LANES * 4, type == UMA_Q8_0 ? vi_bias_s8(v[j]) : v[j]);
    if (type != UMA_Q8_0) return;
    vi_rows16(v, w + 2 + 16, stride);
    for (int j = 0; j < 4; j++) vi_store(q + (4 + j) * V_LANES * 4, vi_bias_s8(v[j]));
}

static void mm_arrange(enum uma_type type, int64_t n_out, int64_t n_in, const void * weights, size_t stride, void * arranged) {
    const size_t block = (size_t)uma_type_info(type).block_bytes;
    uint8_t copy[V_LANES * Q8_0_BYTES], * to = arranged;
    for (int64_t out = 0; out < n_out; out += V_LANES, to += arranged_panel(type, n_in)) {
        const int64_t lanes = n_out - out < V_LANES ? n_out - out : V_LANES;
        const uint8_t * w = (const uint8_t *)weights + (size_t)out * stride;
        memset(copy, 0, sizeof copy);
        for (int64_t b = 0; b < n_in / 32; b++, w += block) {
            for (int64_t i = 0; i < lanes && lanes < V_LANES; i++) memcpy(copy + (size_t)i * block, w + (size_t)i * stride, block);
            const bool is_whole = lanes == V_LANES;
            arrange_block(type, is_whole ? w : copy, is_whole ? stride : block, to + b * V_LANES * 2, to + arranged_scales(n_in) + (size_t)b * arranged_run(type));
        }
    }
}

static inline const uint8_t * arranged_at(const struct uma_mm * mm, int64_t out) {
    return (const uint8_t *)mm->w + (size_t)(out / V_LANES) * arranged_panel(mm->type, mm->n_in);
}

// Of `n` panels multiplied at once each fetches its successor's part of the bytes that follow all of them.
static void start_arranged(const struct uma_mm * mm, int64_t out, int n, struct panel * p) {
    const int is_near = mm->type == UMA_Q8_0 && uma_cpu_l1d_bytes() >= NEAR_CACHE;
    const size_t panel = arranged_panel(mm->type, mm->n_in), most = is_near ? NEAR_MOST : AHEAD_MOST;
    for (int i = 0; i < n; i++) {
        p[i].ahead = (uintptr_t)arranged_at(mm, out + i * V_LANES) + (size_t)(n - 1) * panel + (panel < most ? panel : most);
        p[i].is_near = is_near;
    }
}

// Columns col..col+n-1 of the panel that starts at weight row `out`: in place, or nibbles parted.
static void open_arranged(const struct uma_mm * mm, int64_t out, int64_t col, int64_t n, struct panel * p) {
    const uint8_t * scales = arranged_at(mm, out) + (size_t)(col / 32) * V_LANES * 2;
    const uint8_t * q = arranged_at(mm, out) + arranged_scales(mm->n_in) + (size_t)(col / 32) * arranged_run(mm->type);
    const vi nibble = vi_set1(0x0f0f0f0f);
    for (int64_t b = 0; b < n / 32; b++, scales += V_LANES * 2) vf_store(p->scale + b * V_LANES, vf_load_f16(scales));
    if (mm->type == UMA_Q8_0) {
        p->q = q;
        p->is_fetching = 1;
        return;
    }
    p->q = p->unpacked;
    for (int64_t b = 0; b < n / 32; b++, q += 16 * V_LANES) {
        fetch_ahead(p, V_LANES * Q4_0_BYTES);
        for (int j = 0; j < 4; j++) {
            const vi v = vi_load(q + j * V_LANES * 4);
            put4(p, b * 8 + j, vi_and(v, nibble));
            put4(p, b * 8 + 4 + j, vi_and(vi_srl(v, 4), nibble));
        }
    }
}

#endif
