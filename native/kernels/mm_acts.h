// Activations of a product by quantised weights, laid out in tiles of a few rows. They are s8, quantised as in ggml's
// Q8_0 or Q8_K.
//
// A tile of r rows holds q [n_in / ACT_GROUP][r][ACT_GROUP] s8, then for each group of `sub` columns d [r] f32 and c
// [r]. c is the s32 value from which the product starts. For types with a minimum it is an f32 instead: the sum of q,
// times d if d belongs to that group alone. If products are summed by block, the c of each even group holds the sums of
// q of this group and the next, as s16. Tiles follow each other.
#ifndef UMA_MM_ACTS_H
#define UMA_MM_ACTS_H

// Columns of one row that lie together: as many as one dot product instruction takes.
#ifdef V_HAS_I8MM
enum { ACT_GROUP = 8 };
#else
enum { ACT_GROUP = 4 };
#endif

enum { V_PANELS = 2 }; // most panels that are multiplied at once

struct part { // of a tile, from some column on
    int64_t row;
    int n_rows;
    int8_t * q;
    float * dc;
};

// True if activations have one scale per 256 columns; otherwise they have one per 32.
static inline bool is_by_256(enum uma_type type) { return uma_type_info(type).act_block == 256; }

#ifdef V_HAS_PAIRS
enum { V_SUMS_PAIRS = 1 };
#else
enum { V_SUMS_PAIRS = 0 };
#endif

// True if products are summed in integers over a block of 256 columns; see block_sums.
static inline bool is_summed_by_block(const struct uma_mm * mm) {
    return V_SUMS_PAIRS && mm->is_repacked && is_by_256(mm->type);
}

// How products are scaled. BY_32: by the scales of 32 columns, of weights and activations. BY_256: by the weights'
// scales of 32 or 16 columns, and then by the activations' scale of 256. BY_BLOCK: by the weights' scales of 32 or 16
// columns in integers, and by all others after 256 columns.
enum scaling { BY_32, BY_256, BY_BLOCK, N_SCALINGS };

static inline enum scaling scaling_of(const struct uma_mm * mm) {
    return is_summed_by_block(mm) ? BY_BLOCK : is_by_256(mm->type) ? BY_256 : BY_32;
}

static inline size_t acts_row_bytes(enum uma_type type, int64_t n_in) {
    return (size_t)n_in + (size_t)(n_in / uma_type_info(type).sub) * 8;
}

// True if weights of fewer than 8 bits are multiplied in place. This is for a few tiles of rows: unpacking the bits for
// each tile takes less time than storing the weights as bytes, and all tiles can prefetch. (One core, AVX-512 VNNI,
// weights in memory: products of 10, 16, 24 and 32 rows take 0.79, 0.80, 0.89 and 0.93 of the time by Q4_K, and 0.77,
// 0.77, 0.83 and 0.91 by Q6_K.)
static inline bool multiplies_bits(const struct uma_mm * mm) {
    return mm->is_repacked && uma_type_info(mm->type).bits < 8 && mm->n_rows <= V_MOST_IN_PLACE;
}

// Panels multiplied at once. Two share the loads of the activations, if a tile of rows leaves registers for them. Sums
// by block over unpacked bytes leave none. (One core of a Zen 3, weights in a cache, 64 to 256 rows by Q4_K and Q6_K:
// compared with sums in f32, sums by block take 1.06 to 1.43 of the time with two panels, 0.93 to 1.08 with one.)
static inline int panels_at_once(const struct uma_mm * mm) {
    if (mm->n_rows > V_TILE_ROWS && !multiplies_bits(mm)) return is_summed_by_block(mm) ? 1 : V_QUANT_PANELS;
    if (mm->n_rows > V_ROWS_BY_TWO && mm->n_rows <= V_TILE_ROWS) return 1; // one tile holds all rows
    const int bits = uma_type_info(mm->type).bits;
    return multiplies_bits(mm) && (bits == 5 || bits == 6) ? 1 : V_FEW_PANELS; // unpacking these takes registers, too
}

static inline int most_tile_rows(const struct uma_mm * mm) {
    return panels_at_once(mm) == 2 ? V_ROWS_BY_TWO : V_TILE_ROWS;
}

static inline int64_t n_tiles(const struct uma_mm * mm) {
    const int rows = most_tile_rows(mm);
    return (mm->n_rows + rows - 1) / rows;
}

// Returns tile t of the most even split of the rows.
static inline struct part tile_at(const struct uma_mm * mm, int64_t t) {
    const int64_t n = n_tiles(mm), base = mm->n_rows / n, rest = mm->n_rows % n;
    const int64_t row = t * base + (t < rest ? t : rest);
    const int rows = (int)(base + (t < rest));
    uint8_t * at = (uint8_t *)mm->acts + (size_t)row * acts_row_bytes(mm->type, mm->n_in);
    return (struct part){ row, rows, (int8_t *)at, (float *)(void *)(at + (size_t)rows * (size_t)mm->n_in) };
}

static inline struct part from_column(struct part tile, int64_t col, enum uma_type type) {
    tile.q += col * tile.n_rows;
    tile.dc += col / uma_type_info(type).sub * 2 * tile.n_rows;
    return tile;
}

// Returns the largest magnitude. It compares bit patterns, because integer comparisons vectorise without relaxed
// floating-point rules.
static inline float max_magnitude(const float * x, int n) {
    int32_t best = 0;
    for (int i = 0; i < n; i++) {
        int32_t bits;
        memcpy(&bits, x + i, 4);
        bits &= 0x7fffffff;
        best = bits > best ? bits : best;
    }
    float f;
    memcpy(&f, &best, 4);
    return f;
}

static inline void quantise(const float * x, float inverse, int8_t * q, int n) {
    for (int i = 0; i < n; i++) q[i] = (int8_t)(int32_t)rintf(x[i] * inverse);
}

// Q8_0: d is rounded to f16, as the format would store it. The values are quantised by the unrounded d.
static inline float quantise_32(const float * x, int8_t * q) {
    const float max = max_magnitude(x, 32);
    quantise(x, max > 0 && max <= 3.4e38f ? 127.0f / max : 0.0f, q, 32);
    return uma_round_f16(max / 127.0f);
}

// Returns the first element of x with this magnitude. A search would take as long as the rest of quantise_256, but
// counting how often each sign occurs vectorises. Nearly always only one sign does, and nothing has to be searched.
static inline float first_of(const float * x, float max) {
    int n_plus = 0, n_minus = 0, i = 0;
    for (int k = 0; k < 256; k++) {
        n_plus += x[k] == max;
        n_minus += x[k] == -max;
    }
    if (n_plus == 0 || n_minus == 0) return n_plus > 0 ? max : -max;
    while (x[i] != max && x[i] != -max) i++;
    return x[i];
}

// Q8_K: the value of largest magnitude becomes -127. As with Q8_0, NaN or infinity makes all products of the row
// non-finite, and the logits are then refused.
static inline float quantise_256(const float * x, int8_t * q) {
    const float max = max_magnitude(x, 256);
    if (!(max > 0 && max <= 3.4e38f)) {
        memset(q, 0, 256);
        return max;
    }
    const float inverse = -127.0f / first_of(x, max);
    quantise(x, inverse, q, 256);
    return 1.0f / inverse;
}

static inline int32_t sum_s8(const int8_t * q, int n) {
    int32_t sum = 0;
    for (int i = 0; i < n; i++) sum += q[i];
    return sum;
}

// Lays out n quantised columns from column `col` on of row r of a tile.
static inline void put_acts(const struct uma_mm * mm, const struct part * t, int r, int64_t col, const int8_t * q,
    int n, float d) {
    const struct uma_type_info info = uma_type_info(mm->type);
    const int32_t offset = info.is_signed ? V_S8_BIAS : info.offset;
    for (int j = 0; j < n / ACT_GROUP; j++)
        memcpy(t->q + ((col / ACT_GROUP + j) * t->n_rows + r) * ACT_GROUP, q + ACT_GROUP * j, ACT_GROUP);
    for (int s = 0; s < n / info.sub; s++) {
        float * dc = t->dc + (col / info.sub + s) * 2 * t->n_rows + r;
        const int32_t sum = sum_s8(q + s * info.sub, info.sub);
        const int32_t start = -offset * sum;
        const float scaled = is_by_256(mm->type) ? (float)sum : d * (float)sum;
        dc[0] = d;
        if (is_summed_by_block(mm)) {
            const int16_t narrow = (int16_t)sum;
            float * pair = s % 2 ? dc - t->n_rows : dc + t->n_rows; // c of the even group
            memcpy((char *)pair + s % 2 * 2, &narrow, 2);
            continue;
        }
        memcpy(dc + t->n_rows, info.has_min ? (const void *)&scaled : (const void *)&start, 4);
    }
}

static inline const float * x_row(const struct uma_mm * mm, int64_t row) {
    const int64_t from = mm->x_index ? mm->x_index[row] : row;
    return (const float *)(const void *)((const char *)mm->x + (size_t)from * mm->x_stride);
}

// Quantises and lays out columns col..col+n-1 of all rows of a tile.
static void pack_columns(const struct uma_mm * mm, const struct part * t, int64_t col, int n) {
    for (int r = 0; r < t->n_rows; r++) {
        const float * x = x_row(mm, t->row + r) + col;
        int8_t q[Q8_K_WEIGHTS];
        const float d = n == 32 ? quantise_32(x, q) : quantise_256(x, q);
        put_acts(mm, t, r, col, q, n, d);
    }
}

// Threads divide the work by columns. The rows of a tile lie side by side, and threads that write to the same cache
// line wait for each other. (Four rows take half of the time this way.)
static void pack(const struct uma_mm * mm, int ith, int nth) {
    if (uma_is_float(mm->type)) return;
    const int run = uma_type_info(mm->type).act_block;
    const int64_t per_tile = (mm->n_in + run - 1) / run, n = n_tiles(mm) * per_tile;
    for (int64_t i = n * ith / nth; i < n * (ith + 1) / nth; i++) {
        const struct part t = tile_at(mm, i / per_tile);
        const int64_t col = i % per_tile * run;
        pack_columns(mm, &t, col, mm->n_in - col < run ? (int)(mm->n_in - col) : run);
    }
}

#endif
