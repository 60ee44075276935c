// The matrix products of one instruction set, as a table entry. mm_<isa>.c includes this file after a vec_*.h.
//
// For each panel (or two) and each chunk of columns, the weights are unpacked once, and every tile of activations is
// multiplied by them.
#ifndef UMA_MM_TABLE_H
#define UMA_MM_TABLE_H

#include "mm_repacked.h"
#include "mm_direct.h"
#include "mm_tile.h"

enum {
    CHUNK = 512, // columns per chunk: the unpacked panel (8 KiB at 16 lanes) stays in the first-level cache
    // chunk of one or two rows by 8-bit weights in place: one tile reads the weights once, so nothing has to stay in a
    // cache (2 cores of a Zen 4, measured alternately: with 896, 2,048, 4,864 and 8,192 columns one row takes 0.97,
    // 0.92, 0.96 and 0.98 of the time, two rows take 0.94, 0.94, 0.94 and 0.97)
    LONG_CHUNK = 8192,
    Q_BYTES = CHUNK * V_LANES,
    SCALE_BYTES = LONG_CHUNK / 32 * V_LANES * 4, // for 8-bit weights; other types have at most CHUNK / 16 for a lane
    PANEL_BYTES = Q_BYTES + 2 * SCALE_BYTES,
    COPY_BYTES = CHUNK / 32 * Q8_0_BYTES * V_LANES, // for the widest format
    ACC_ROW = V_PANELS * V_LANES,
};

struct scratch {
    struct panel panels[V_PANELS];
    uint8_t * copy; // rows of an incomplete panel
    float * acc;    // [n_rows][ACC_ROW]
};

static struct scratch scratch_at(void * at) {
    uint8_t * p = at;
    struct scratch s;
    for (int i = 0; i < V_PANELS; i++, p += PANEL_BYTES) {
        s.panels[i] = (struct panel){
            .q = p, .unpacked = p, .scale = (float *)(void *)(p + Q_BYTES),
                .min = (float *)(void *)(p + Q_BYTES + SCALE_BYTES) };
    }
    s.copy = p;
    s.acc = (float *)(void *)(p + COPY_BYTES);
    return s;
}

// Copies rows next to each other and fills missing ones with zeros, so that unpacking never reads past the weights.
static const uint8_t * copy_rows(const uint8_t * w, size_t stride, int lanes, size_t bytes, uint8_t * copy) {
    memset(copy, 0, bytes * V_LANES);
    for (int i = 0; i < lanes; i++) memcpy(copy + (size_t)i * bytes, w + (size_t)i * stride, bytes);
    return copy;
}

// Prepares columns col..col+n-1 of the panel that starts at weight row `out`.
static void unpack_panel(const struct uma_mm * mm, int64_t out, int64_t col, int64_t n, struct panel * p,
    uint8_t * copy) {
    if (mm->is_repacked) {
        open_repacked(mm, out, col, n, is_in_place(mm), p);
        return;
    }
    const struct uma_type_info info = uma_type_info(mm->type);
    const int lanes = mm->n_out - out < V_LANES ? (int)(mm->n_out - out) : V_LANES;
    const size_t bytes = (size_t)(n / info.block * info.block_bytes);
    const uint8_t * w = (const uint8_t *)mm->w + (size_t)out * mm->w_stride
        + (size_t)(col / info.block * info.block_bytes);
    if (lanes < V_LANES) w = copy_rows(w, mm->w_stride, lanes, bytes, copy);
    unpack(mm->type, p, w, lanes < V_LANES ? bytes : mm->w_stride, n);
}

static void write_rows(const struct uma_mm * mm, int64_t out, int n, const float * acc) {
    for (int64_t r = 0; r < mm->n_rows; r++, acc += ACC_ROW) {
        const int64_t to = mm->y_index ? mm->y_index[r] : r;
        float * y = (float *)(void *)((char *)mm->y + (size_t)to * mm->y_stride) + out;
        for (int i = 0; i < n; i += V_LANES) vf_store_n(y + i, vf_load(acc + i), n - i < V_LANES ? n - i : V_LANES);
    }
}

static void start_fetching(const struct uma_mm * mm, int64_t out, int n_panels, struct panel * p) {
    if (mm->is_repacked) {
        start_repacked(mm, out, n_panels, p);
        return;
    }
    for (int i = 0; i < n_panels; i++) p[i].ahead = (uintptr_t)mm->w + (size_t)(out + (n_panels + i) * V_LANES)
        * mm->w_stride;
}

// Returns how many tiles prefetch the weights that are multiplied next, each an equal share. If the first tile
// prefetched all of them, that tile alone would wait for memory. (One core, AVX-512 VNNI, weights in memory: products
// of 10, 12, 16, 24 and 32 rows by Q8_0 take 0.82, 0.82, 0.80, 0.83 and 0.82 of the time.)
static int64_t share_fetching(struct panel * p, int n_panels, int64_t n_tiles) {
    const int64_t n_lines = p->fetch / 64, n = n_tiles < n_lines ? n_tiles : n_lines > 1 ? n_lines : 1;
    for (int i = 0; i < n_panels; i++) p[i].fetch /= (int)n;
    return n;
}

// Computes y for the n weight rows (at most V_LANES per panel) from `out` on.
static void panels_product(const struct uma_mm * mm, int64_t out, int n, struct scratch * s) {
    const int n_panels = (n + V_LANES - 1) / V_LANES;
    const enum kind kind = is_in_place(mm) ? kind_in_place(mm->type) : kind_of_bytes(mm->type);
    tile_fn * product = TILES[n_panels - 1][scaling_of(mm)][kind];
    const int64_t chunk = mm->n_rows <= 2 && kind == KIND_S8 && is_in_place(mm) ? LONG_CHUNK : CHUNK;
    memset(s->acc, 0, (size_t)mm->n_rows * ACC_ROW * 4);
    start_fetching(mm, out, n_panels, s->panels);
    for (int64_t col = 0; col < mm->n_in; col += chunk) {
        const int64_t width = mm->n_in - col < chunk ? mm->n_in - col : chunk;
        for (int i = 0; i < n_panels; i++) unpack_panel(mm, out + i * V_LANES, col, width, s->panels + i, s->copy);
        const int64_t n_fetching = share_fetching(s->panels, n_panels, n_tiles(mm));
        for (int64_t t = 0; t < n_tiles(mm); t++) {
            const struct part x = from_column(tile_at(mm, t), col, mm->type);
            for (int i = 0; i < n_panels && t == n_fetching; i++) s->panels[i].is_fetching = 0;
            product(s->panels, &x, s->acc + x.row * ACC_ROW, width);
        }
    }
    write_rows(mm, out, n, s->acc);
}

static size_t mm_acts_bytes(enum uma_type type, int64_t n_in, int64_t n_rows) {
    return uma_is_float(type) ? 0 : (size_t)n_rows * acts_row_bytes(type, n_in);
}

static size_t mm_scratch_bytes(int64_t n_rows) {
    return (V_PANELS * PANEL_BYTES + COPY_BYTES + (size_t)n_rows * ACC_ROW * 4 + 63) & ~(size_t)63;
}

static void mm_rows(const struct uma_mm * mm, int64_t out_begin, int64_t out_end, void * scratch) {
    if (uma_is_float(mm->type)) {
        direct_rows(mm, out_begin, out_end);
        return;
    }
    struct scratch s = scratch_at(scratch);
    const int step = panels_at_once(mm) * V_LANES;
    for (int64_t out = out_begin; out < out_end; out += step) {
        panels_product(mm, out, out_end - out < step ? (int)(out_end - out) : step, &s);
    }
}

#define MM_TABLE { V_PANELS * V_LANES, V_MIN_ROWS, mm_acts_bytes, mm_scratch_bytes, pack, mm_rows, mm_repacked_bytes, \
    mm_repack }

#endif
