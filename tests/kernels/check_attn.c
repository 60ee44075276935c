// Checks attention against f64: every way of masking, both KV layouts, all types, whole and in parts that are merged.
#include "check.h"

struct shape {
    enum uma_type type;
    int dim_k, dim_v, n_rows, n_group;
    int64_t n_cells;
    int is_paged, has_mask, has_limits, has_begins, has_sink, n_parts;
    float softcap;
    int has_slopes, is_v_in_k;
    int has_nan; // in every seventh cell
};

// K or V of one head: the place of each cell's bytes, and the cells' values as f64.
struct store {
    uint8_t * bytes;
    int32_t * pages;
    struct uma_kv kv;
    double * values; // [n_cells][dim]
};

static int is_float(enum uma_type type) { return type == UMA_F16 || type == UMA_BF16; }

static uint8_t * cell_bytes(const struct store * s, int64_t cell) {
    const size_t page = s->pages ? (size_t)s->pages[cell / 64] * s->kv.page_stride : (size_t)(cell / 64)
        * 64 * s->kv.cell_stride;
    return s->bytes + page + (size_t)(cell % 64) * s->kv.cell_stride;
}

static double bf16_value(uint16_t h) {
    const uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, 4);
    return (double)f;
}

static void fill_cell(enum uma_type type, uint8_t * p, double * values, int dim) {
    uint16_t d = 0;
    for (int i = 0; i < dim; i++) {
        if (type == UMA_F16 || type == UMA_BF16) {
            const float f = rand_float() * 2;
            uint32_t bits;
            memcpy(&bits, &f, 4);
            const uint16_t h = type == UMA_F16 ? f16_bits(f) : (uint16_t)(bits >> 16);
            memcpy(p + 2 * i, &h, 2);
            values[i] = type == UMA_F16 ? f16_value(h) : bf16_value(h);
            continue;
        }
        const int is_4_bits = type == UMA_Q4_0;
        uint8_t * block = p + i / 32 * (is_4_bits ? 18 : 34);
        if (i % 32 == 0) d = f16_bits(0.01f + 0.005f * (float)(i / 32)), memcpy(block, &d, 2);
        uint8_t * q = block + 2 + (is_4_bits ? i % 16 : i % 32);
        if (!is_4_bits) {
            *q = (uint8_t)rand_u32();
            values[i] = f16_value(d) * (int8_t)*q;
            continue;
        }
        const int bits = rand_below(16);
        *q = (uint8_t)(i % 32 < 16 ? bits : (*q & 15) | bits << 4);
        values[i] = f16_value(d) * (bits - 8);
    }
}

static int is_nan_cell(const struct shape * s, int64_t cell) { return s->has_nan && cell % 7 == 3; }

static void fill_with_nan(enum uma_type type, uint8_t * p, int dim) {
    const uint16_t nan = type == UMA_BF16 ? 0x7fc0 : 0x7e00;
    const int step = is_float(type) ? 2 : type == UMA_Q4_0 ? 18 : 34, n = is_float(type) ? dim : dim / 32;
    for (int i = 0; i < n; i++) memcpy(p + i * step, &nan, 2);
}

// The values of cells with NaN stay finite: they must not matter to queries that do not see them.
static struct store new_store(const struct shape * s, int dim) {
    const size_t row = is_float(s->type) ? (size_t)dim * 2 : (size_t)dim / 32 * (s->type == UMA_Q4_0 ? 18 : 34);
    const int64_t n_pages = (s->n_cells + 63) / 64;
    struct store st = { 0 };
    st.kv.cell_stride = row + 34 * (size_t)rand_below(2);
    if (s->is_paged) {
        st.kv.page_stride = 64 * st.kv.cell_stride;
        st.pages = new_bytes((size_t)n_pages * 4);
        // scattered, distinct
        for (int64_t i = 0; i < n_pages; i++) st.pages[i] = (int32_t)((i * 7 + 3) % (n_pages * 8 + 1));
        st.bytes = new_bytes((size_t)(n_pages * 8 + 1) * st.kv.page_stride);
    } else {
        st.bytes = new_bytes(st.kv.cell_stride * (size_t)(s->n_cells - 1) + row);
    }
    st.kv.base = st.bytes;
    st.kv.pages = st.pages;
    st.values = new_bytes((size_t)s->n_cells * (size_t)dim * 8);
    for (int64_t c = 0; c < s->n_cells; c++) {
        fill_cell(s->type, cell_bytes(&st, c), st.values + c * dim, dim);
        if (is_nan_cell(s, c)) fill_with_nan(s->type, cell_bytes(&st, c), dim);
    }
    return st;
}

// V as the beginning of K's rows.
static struct store new_beginning(const struct store * k, const struct shape * s) {
    struct store st = { .kv = k->kv };
    st.values = new_bytes((size_t)s->n_cells * (size_t)s->dim_v * 8);
    for (int64_t c = 0; c < s->n_cells; c++)
        memcpy(st.values + c * s->dim_v, k->values + c * s->dim_k, (size_t)s->dim_v * 8);
    return st;
}

static struct store new_values(const struct store * k, const struct shape * s) {
    return s->is_v_in_k ? new_beginning(k, s) : new_store(s, s->dim_v);
}

static void free_store(struct store * s) { free(s->bytes), free(s->pages), free(s->values); }

struct inputs {
    float * q, * slopes, sink;
    uint16_t * mask;
    int64_t * limits, * begins;
};

static struct inputs new_inputs(const struct shape * s) {
    struct inputs in = { 0 };
    const int n_q = s->n_rows * s->n_group;
    in.q = new_bytes((size_t)(n_q * s->dim_k) * 4);
    for (int i = 0; i < n_q * s->dim_k; i++) in.q[i] = rand_float() * 3;
    in.slopes = new_bytes((size_t)s->n_group * 4);
    for (int g = 0; g < s->n_group; g++) in.slopes[g] = powf(0.5f, (float)g);
    in.sink = rand_float();
    in.mask = new_bytes((size_t)s->n_rows * (size_t)s->n_cells * 2);
    in.limits = new_bytes((size_t)s->n_rows * 8);
    in.begins = new_bytes((size_t)s->n_rows * 8);
    for (int r = 0; r < s->n_rows; r++) {
        in.limits[r] = rand_below((int)s->n_cells + 1);
        in.begins[r] = rand_below((int)s->n_cells + 1);
        const int kind = rand_below(4); // visible: nothing, a window, a random sample, everything with values
        for (int64_t c = 0; c < s->n_cells; c++) {
            const int is_visible = kind == 1 ? c >= s->n_cells / 3
                && c < s->n_cells / 2 + 1 : kind == 2 ? rand_below(3) == 0 : kind == 3;
            in.mask[r * s->n_cells + c] = is_visible ? f16_bits(kind == 3 ? -rand_float() * rand_float() : 0) : 0xfc00;
        }
    }
    return in;
}

static void free_inputs(struct inputs * in) {
    free(in->q), free(in->slopes), free(in->mask), free(in->limits), free(in->begins);
}

static int is_seen(const struct shape * s, const struct inputs * in, int row, int64_t c) {
    return !(s->has_limits && c >= in->limits[row]) && !(s->has_begins && c < in->begins[row])
        && !(s->has_mask && in->mask[row * s->n_cells + c] == 0xfc00);
}

// The score of a cell that the query sees; `size`: the sum of its terms' sizes.
static double score(const struct shape * s, const struct inputs * in, const struct store * k, int q, int64_t c,
    double * size) {
    const float * query = in->q + q * s->dim_k;
    const double * key = k->values + c * s->dim_k;
    double dot = 0;
    *size = 0;
    for (int d = 0; d < s->dim_k; d++) {
        const double term = 0.125 * (double)query[d] * key[d];
        dot += term;
        *size += fabs(term);
    }
    if (s->softcap != 0) dot = s->softcap * tanh(dot / s->softcap);
    if (!s->has_mask) return dot;
    const double slope = s->has_slopes ? (double)in->slopes[q % s->n_group] : 1.0;
    return dot + f16_value(in->mask[q / s->n_group * s->n_cells + c]) * slope;
}

static void judge_query(const struct shape * s, const struct inputs * in, const struct store * k,
    const struct store * v, int q, const float * y, struct tally * t) {
    double max = s->has_sink ? (double)in->sink : -INFINITY, sum = 0, terms = 0;
    double * p = new_bytes((size_t)s->n_cells * 8);
    double * values = new_bytes((size_t)s->dim_v * 16), * sizes = values + s->dim_v;
    int sees_nan = 0;
    memset(values, 0, (size_t)s->dim_v * 16);
    for (int64_t c = 0; c < s->n_cells; c++) {
        double size = 0;
        p[c] = is_seen(s, in, q / s->n_group, c) ? score(s, in, k, q, c, &size) : -INFINITY;
        sees_nan |= is_nan_cell(s, c) && p[c] > -INFINITY;
        max = fmax(max, p[c]);
        terms = fmax(terms, size);
    }
    for (int64_t c = 0; c < s->n_cells; c++) {
        if (p[c] == -INFINITY) continue;
        const double weight = exp(p[c] - max), * value = v->values + c * s->dim_v;
        sum += weight;
        for (int d = 0; d < s->dim_v; d++) {
            values[d] += weight * value[d];
            sizes[d] += weight * fabs(value[d]);
        }
    }
    if (s->has_sink) sum += exp((double)in->sink - max);
    for (int d = 0; d < s->dim_v; d++) {
        if (sees_nan) {
            t->n_values++;
            t->n_bad += isfinite(y[d]) != 0;
            continue;
        }
        // a score's rounding error grows with the terms it sums, and multiplies its weight
        judge(t, (double)y[d], sum > 0 ? values[d] / sum : 0, sum > 0 ? sizes[d] / sum : 0, 2e-6 + 2e-7 * terms);
    }
    free(p), free(values);
}

static void run_parts(const struct uma_kernels * k, const struct shape * s, struct uma_attn at, const float * sink,
    float * y) {
    const int n_q = s->n_rows * s->n_group;
    const size_t stride = ((size_t)s->dim_v + 15) / 16 * 16 * 4;
    struct uma_attn_part * parts = new_bytes((size_t)(n_q * s->n_parts) * sizeof *parts);
    float * out = new_bytes(stride * (size_t)(n_q * s->n_parts));
    void * scratch = new_aligned(k->attn->scratch_bytes(s->dim_k, s->dim_v));
    const int64_t tiles = (s->n_cells + 63) / 64;
    for (int i = 0; i < s->n_parts; i++) {
        at.cell_begin = tiles * i / s->n_parts * 64;
        at.cell_end = tiles * (i + 1) / s->n_parts * 64;
        if (at.cell_end > s->n_cells) at.cell_end = s->n_cells;
        k->attn->run(&at, parts + i * n_q, (float *)((char *)out + (size_t)(i * n_q) * stride), stride, scratch);
    }
    for (int q = 0; q < n_q; q++) {
        uma_attn_merge(parts + q, (size_t)n_q * sizeof *parts, (const float *)((const char *)out + (size_t)q * stride),
            (size_t)n_q * stride, s->n_parts,
                       s->dim_v, sink, y + q * s->dim_v);
    }
    free(parts), free(out), free(scratch);
}

static void one_case(const struct uma_kernels * k, const struct shape * s, struct tally * t) {
    struct store keys = new_store(s, s->dim_k), values = new_values(&keys, s);
    struct inputs in = new_inputs(s);
    const int n_q = s->n_rows * s->n_group;
    float * y = new_bytes((size_t)(n_q * s->dim_v) * 4);
    const struct uma_attn at = {
        .kv_type = s->type, .dim_k = s->dim_k, .dim_v = s->dim_v, .n_rows = s->n_rows, .n_group = s->n_group, .q = in.q,
        .q_row = (size_t)(s->n_group * s->dim_k) * 4, .q_head = (size_t)s->dim_k * 4, .k = keys.kv, .v = values.kv,
        .mask = s->has_mask ? in.mask : NULL, .mask_row = (size_t)s->n_cells * 2,
            .row_cells = s->has_limits ? in.limits : NULL,
        .row_begin = s->has_begins ? in.begins : NULL, .scale = 0.125f, .softcap = s->softcap,
            .slopes = s->has_slopes ? in.slopes : NULL,
    };
    run_parts(k, s, at, s->has_sink ? &in.sink : NULL, y);
    for (int q = 0; q < n_q; q++) judge_query(s, &in, &keys, &values, q, y + q * s->dim_v, t);
    t->n_cases++;
    free(y);
    free_inputs(&in);
    free_store(&keys), free_store(&values);
}

// Checks that a query's result has the same bits in any company: with all others of the batch, and row by row.
static void check_company(const struct uma_kernels * k, const struct shape * s, struct tally * t) {
    struct store keys = new_store(s, s->dim_k), values = new_values(&keys, s);
    struct inputs in = new_inputs(s);
    struct uma_attn at = {
        .kv_type = s->type, .dim_k = s->dim_k, .dim_v = s->dim_v, .n_rows = s->n_rows, .n_group = s->n_group, .q = in.q,
        .q_row = (size_t)(s->n_group * s->dim_k) * 4, .q_head = (size_t)s->dim_k * 4, .k = keys.kv, .v = values.kv,
        .row_cells = in.limits, .row_begin = s->has_begins ? in.begins : NULL, .scale = 0.125f, .softcap = s->softcap,
    };
    const size_t row = (size_t)(s->n_group * s->dim_v);
    float * together = new_bytes(row * (size_t)s->n_rows * 4), * alone = new_bytes(row * 4);
    run_parts(k, s, at, NULL, together);
    for (int r = 0; r < s->n_rows; r++) {
        struct shape one = *s;
        struct uma_attn of = at;
        one.n_rows = of.n_rows = 1;
        of.q = in.q + (size_t)r * (size_t)(s->n_group * s->dim_k);
        of.row_cells += r;
        of.row_begin = of.row_begin ? of.row_begin + r : NULL;
        run_parts(k, &one, of, NULL, alone);
        t->n_cases++;
        t->n_bad += memcmp(alone, together + (size_t)r * row, row * 4) != 0;
    }
    free(together), free(alone);
    free_inputs(&in);
    free_store(&keys), free_store(&values);
}

void check_attn(const struct uma_kernels * k, int one_in, struct tally * t) {
    // the first six: multiples of 32, as quantised types need
    static const int DIMS[] = { 64, 128, 256, 96, 192, 512, 80, 72, 112, 5 };
    static const int64_t CELLS[] = { 1, 17, 63, 64, 65, 128, 200, 333 };
    static const int ROWS[] = { 1, 1, 2, 3, 5, 9 }, GROUPS[] = { 1, 2, 3, 4, 7 };
    static const enum uma_type TYPES[] = { UMA_F16, UMA_Q8_0, UMA_BF16, UMA_Q4_0 };
    for (int i = 0; i < 200 / one_in; i++) {
        const enum uma_type type = TYPES[i % 4];
        struct shape s = { .type = type, .dim_k = DIMS[i / 4 % (is_float(type) ? 10 : 6)],
            .n_rows = ROWS[rand_below(6)], .n_group = GROUPS[rand_below(5)],
                           .n_cells = CELLS[rand_below(8)], .is_paged = rand_below(2), .has_mask = rand_below(2),
                               .has_limits = rand_below(3) == 0,
                           .has_begins = rand_below(3) == 0, .has_sink = rand_below(4) == 0,
                               .n_parts = 1 + rand_below(3), .softcap = rand_below(4) == 0 ? 5.0f : 0,
                           .has_slopes = rand_below(4) == 0 };
        s.dim_v = rand_below(4) == 0 ? (is_float(type) ? 40 : 32) : s.dim_k;
        if (s.n_rows * s.n_group > UMA_ATTN_MAX_Q) s.n_rows = 1;
        one_case(k, &s, t);
        if (s.has_mask || s.has_limits || s.has_begins) {
            s.has_nan = 1;
            one_case(k, &s, t);
            s.has_nan = 0;
        }
        s.n_rows = UMA_ATTN_MAX_Q / s.n_group;
        if (i / 4 % 2) check_company(k, &s, t);
    }
    for (int i = 0; i < 16; i++) { // V is the beginning of K
        if (one_in > 1 && i / 8 != (i + i / 4) % 2) continue; // every type in every group, half of them in pages
        const int group = i / 4 % 2 ? 16 : 4;
        const struct shape s = {
            .type = TYPES[i % 4], .dim_k = 576, .dim_v = 512, .n_rows = 4, .n_group = group, .n_cells = CELLS[i % 8],
                .is_paged = i / 8, .n_parts = 2, .is_v_in_k = 1 };
        one_case(k, &s, t);
        check_company(k, &s, t);
    }
}
