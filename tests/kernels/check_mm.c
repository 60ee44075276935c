// Checks matrix products against f64, on weights dequantised by the formats' definitions.
#include "check.h"

struct format {
    enum uma_type type;
    int block, bytes, act_block;
    int is_plain; // products also read it as it is in the file
};

static const int IQ4[16] = { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 };
static const double FP4[16] = { 0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6 };

static const struct format FORMATS[] = {
    { UMA_Q8_0, 32, 34, 32, 1 },   { UMA_Q4_0, 32, 18, 32, 1 },   { UMA_Q4_K, 256, 144, 256, 1 },
        { UMA_Q6_K, 256, 210, 256, 1 },
    { UMA_Q4_1, 32, 20, 32, 0 },   { UMA_Q5_0, 32, 22, 32, 0 },   { UMA_Q5_1, 32, 24, 32, 0 },
        { UMA_Q5_K, 256, 176, 256, 0 },
    { UMA_IQ4_NL, 32, 18, 32, 0 }, { UMA_MXFP4, 32, 17, 32, 0 },
        { UMA_IQ4_XS, 256, 136, 256, 0 }, { UMA_F16, 1, 2, 1, 1 },
    { UMA_BF16, 1, 2, 1, 1 },      { UMA_F32, 1, 4, 1, 1 },
};

static void put_f16(uint8_t * p, float f) {
    const uint16_t h = f16_bits(f);
    memcpy(p, &h, 2);
}

static double get_f16(const uint8_t * p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return f16_value(h);
}

static void random_block(const struct format * f, uint8_t * p) {
    for (int i = 0; i < f->bytes; i++) p[i] = (uint8_t)rand_u32();
    const float d = rand_below(20) == 0 ? 0 : rand_float() * (rand_below(10) == 0 ? 6e-5f : 0.1f);
    switch (f->type) {
        case UMA_F16: put_f16(p, rand_float() * 2); break;
        case UMA_F32: {
            const float f = rand_float() * 2;
            memcpy(p, &f, 4);
            break;
        }
        case UMA_Q6_K: put_f16(p + 208, d); break;
        case UMA_BF16: put_f16(p, 0), p[1] = (uint8_t)(0x3c + rand_below(4) + 128 * rand_below(2)),
            p[0] = (uint8_t)rand_u32(); break;
        case UMA_MXFP4: p[0] = (uint8_t)(110 + rand_below(20)); break;
        case UMA_Q4_1:
        case UMA_Q5_1:
        case UMA_Q5_K:
        case UMA_Q4_K: put_f16(p + 2, rand_float() * 0.1f); // fall through
        default: put_f16(p, d); break;
    }
}

static void q4_k_scale(const uint8_t * s, int j, int * scale, int * min) {
    if (j < 4) {
        *scale = s[j] & 63;
        *min = s[j + 4] & 63;
    } else {
        *scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
        *min = s[j + 4] >> 4 | (s[j] >> 6) << 4;
    }
}

static double q6_k_weight(const uint8_t * p, int i) {
    const int half = i / 128, j = i % 128, run = j / 32, l = j % 32;
    const int low = p[64 * half + 32 * (run % 2) + l] >> (run / 2 * 4) & 15;
    const int high = p[128 + 32 * half + l] >> (2 * run) & 3;
    return get_f16(p + 208) * (int8_t)p[192 + i / 16] * ((low | high << 4) - 32);
}

static int nibble_of(const uint8_t * qs, int j) { return qs[j % 16] >> (j / 16 * 4) & 15; }

static int fifth_of(const uint8_t * qh, int j) { return (qh[j / 8] >> (j % 8) & 1) << 4; }

static double q5_k_weight(const uint8_t * p, int j) {
    int scale, min;
    q4_k_scale(p + 4, j / 32, &scale, &min);
    const int q = (p[48 + j / 64 * 32 + j % 32] >> (j / 32 % 2 * 4) & 15) | (p[16 + j % 32] >> (j / 32) & 1) << 4;
    return get_f16(p) * scale * q - get_f16(p + 2) * min;
}

static double iq4_xs_weight(const uint8_t * p, int j) {
    const int s = j / 32, high = p[2] | p[3] << 8;
    const int scale = (p[4 + s / 2] >> (4 * (s % 2)) & 15) | (high >> (2 * s) & 3) << 4;
    return get_f16(p) * (scale - 32) * IQ4[nibble_of(p + 8 + 16 * s, j % 32)];
}

static double weight(const struct format * f, const uint8_t * row, int64_t i) {
    const uint8_t * p = row + i / f->block * f->bytes;
    const int j = (int)(i % f->block);
    int scale, min;
    float value;
    switch (f->type) {
        case UMA_F32: memcpy(&value, p, 4); return (double)value;
        case UMA_Q8_0: return get_f16(p) * (int8_t)p[2 + j];
        case UMA_Q4_0: return get_f16(p) * ((p[2 + j % 16] >> (j / 16 * 4) & 15) - 8);
        case UMA_Q4_K:
            q4_k_scale(p + 4, j / 32, &scale, &min);
            return get_f16(p) * scale * (p[16 + j / 64 * 32 + j % 32] >> (j / 32 % 2 * 4) & 15) - get_f16(p + 2) * min;
        case UMA_Q6_K: return q6_k_weight(p, j);
        case UMA_Q4_1: return get_f16(p) * nibble_of(p + 4, j) + get_f16(p + 2);
        case UMA_Q5_0: return get_f16(p) * ((nibble_of(p + 6, j) | fifth_of(p + 2, j)) - 16);
        case UMA_Q5_1: return get_f16(p) * (nibble_of(p + 8, j) | fifth_of(p + 4, j)) + get_f16(p + 2);
        case UMA_Q5_K: return q5_k_weight(p, j);
        case UMA_IQ4_NL: return get_f16(p) * IQ4[nibble_of(p + 2, j)];
        case UMA_IQ4_XS: return iq4_xs_weight(p, j);
        case UMA_MXFP4: return ldexp(FP4[nibble_of(p + 1, j)], p[0] - 127);
        case UMA_BF16: return ldexp(1.0 + (p[0] & 127) / 128.0, (p[1] & 127) * 2 + (p[0] >> 7) - 127)
            * (p[1] >> 7 ? -1 : 1);
        default: return get_f16(p);
    }
}

// The activations as the format's dot product sees them: Q8_0 blocks with an f16 scale, Q8_K blocks with an f32 scale,
// or as they are.
static void quantised_row(const struct format * f, const float * x, int64_t n, double * out) {
    for (int64_t b = 0; b < n; b += f->act_block) {
        float max = 0, top = 0;
        for (int j = 0; j < f->act_block; j++) {
            if (fabsf(x[b + j]) > max) max = fabsf(x[b + j]), top = x[b + j];
        }
        const float inverse = max == 0 ? 0 : f->act_block == 32 ? 127.0f / max : -127.0f / top;
        const double d = max == 0 ? 0 : f->act_block == 32 ? f16_value(f16_bits(max / 127.0f))
            : (double)(1.0f / inverse);
        for (int j = 0; j < f->act_block; j++)
            out[b + j] = f->act_block == 1 ? (double)x[b + j] : d * rint((double)(x[b + j] * inverse));
    }
}

// `w`: the weights' values, [n_out][n_in]; `x`: those of the activations.
static void judge_all(const struct uma_mm * mm, const double * w, const double * x, struct tally * t) {
    for (int64_t r = 0; r < mm->n_rows; r++) {
        const double * row = x + (mm->x_index ? mm->x_index[r] : r) * mm->n_in;
        const float * y = (const float *)((const char *)mm->y
            + (size_t)(mm->y_index ? mm->y_index[r] : r) * mm->y_stride);
        for (int64_t o = 0; o < mm->n_out; o++) {
            double sum = 0, size = 0;
            for (int64_t i = 0; i < mm->n_in; i++) {
                const double product = w[o * mm->n_in + i] * row[i];
                sum += product;
                size += fabs(product);
            }
            judge(t, (double)y[o], sum, size, 1e-6);
        }
    }
}

// Computes one product, its rows split between `nth` callers as threads would split them.
static void run_split(const struct uma_kernels * k, const struct uma_mm * mm, int nth) {
    const int64_t panels = (mm->n_out + k->mm->panel - 1) / k->mm->panel;
    void * scratch = new_aligned(k->mm->scratch_bytes(mm->n_rows));
    for (int i = 0; i < nth; i++) k->mm->pack(mm, i, nth);
    for (int i = 0; i < nth; i++) {
        const int64_t begin = panels * i / nth * k->mm->panel, end = panels * (i + 1) / nth * k->mm->panel;
        if (begin < mm->n_out) k->mm->rows(mm, begin, end < mm->n_out ? end : mm->n_out, scratch);
    }
    free(scratch);
}

// Checks that a row's values do not depend, to the last bit, on how many other rows a call has.
static void check_alone(const struct uma_kernels * k, const struct uma_mm * mm, struct tally * t) {
    if (mm->y_index) return;
    float * y = new_bytes((size_t)mm->n_out * 4);
    for (int64_t r = 0; r < mm->n_rows; r++) {
        struct uma_mm one = *mm;
        one.n_rows = 1;
        one.x = (const float *)((const char *)mm->x + (size_t)r * mm->x_stride);
        one.y = y, one.y_stride = (size_t)mm->n_out * 4;
        one.acts = new_aligned(k->mm->acts_bytes(mm->type, mm->n_in, 1));
        run_split(k, &one, 1);
        t->n_values++;
        t->n_bad += memcmp(y, (const char *)mm->y + (size_t)r * mm->y_stride, (size_t)mm->n_out * 4) != 0;
        free(one.acts);
    }
    free(y);
}

// Computes and checks the same product once more, on repacked weights, if the table repacks this type.
static void check_repacked(const struct uma_kernels * k, const struct uma_mm * mm, size_t y_bytes, const double * w,
    const double * x, struct tally * t) {
    const size_t bytes = k->mm->repacked_bytes(mm->type, mm->n_out, mm->n_in);
    if (bytes == 0) return;
    void * repacked = new_aligned(bytes);
    struct uma_mm other = *mm;
    k->mm->repack(mm->type, mm->n_out, mm->n_in, mm->w, mm->w_stride, repacked);
    other.w = repacked, other.w_stride = 0, other.is_repacked = 1;
    memset(mm->y, 0xff, y_bytes); // NaN
    run_split(k, &other, 1 + rand_below(3));
    judge_all(mm, w, x, t);
    check_alone(k, &other, t);
    t->n_cases++;
    free(repacked);
}

static void one_case(const struct uma_kernels * k, const struct format * f, int64_t n_out, int64_t n_in, int64_t n_rows,
    int has_index, struct tally * t) {
    const size_t row_bytes = (size_t)(n_in / f->block * f->bytes), w_stride = row_bytes + (size_t)(rand_below(2) * 6);
    const int64_t n_held = has_index ? n_rows * 2 : n_rows, y_stride = n_out + rand_below(3);
    // rows are permuted: sources are drawn at random, results go to distinct rows
    uint8_t * w = new_bytes(w_stride * (size_t)(n_out - 1) + row_bytes);
    float * x = new_bytes((size_t)(n_held * n_in) * 4);
    float * y = new_bytes((size_t)((n_held - 1) * y_stride + n_out) * 4);
    double * quantised = new_bytes((size_t)(n_held * n_in) * 8), * weights = new_bytes((size_t)(n_out * n_in) * 8);
    int32_t * index = new_bytes((size_t)n_rows * 8);
    for (int64_t o = 0; o < n_out; o++) {
        for (int64_t b = 0; b < n_in / f->block; b++)
            random_block(f, w + (size_t)o * w_stride + (size_t)(b * f->bytes));
        for (int64_t i = 0; i < n_in; i++) weights[o * n_in + i] = weight(f, w + (size_t)o * w_stride, i);
    }
    for (int64_t i = 0; i < n_held * n_in; i++) x[i] = rand_below(50) == 0 ? 30 * rand_float() : rand_float();
    memset(x, 0, (size_t)(n_in < 64 ? n_in : 64) * 4);
    for (int64_t r = 0; r < n_held; r++) quantised_row(f, x + r * n_in, n_in, quantised + r * n_in);
    for (int64_t r = 0; r < n_rows; r++) index[r] = (int32_t)(2 * n_rows - 1 - 2 * r),
        index[n_rows + r] = (int32_t)rand_below((int)n_held);
    struct uma_mm mm = { .type = f->type, .n_out = n_out, .n_in = n_in, .n_rows = n_rows, .w = w, .w_stride = w_stride,
        .x = x,
                         .x_stride = (size_t)n_in * 4, .y = y, .y_stride = (size_t)y_stride * 4,
                         .y_index = has_index ? index : NULL, .x_index = has_index ? index + n_rows : NULL };
    mm.acts = new_aligned(k->mm->acts_bytes(f->type, n_in, n_rows));
    if (f->is_plain) {
        run_split(k, &mm, 1 + rand_below(3));
        judge_all(&mm, weights, quantised, t);
        check_alone(k, &mm, t);
        t->n_cases++;
    }
    check_repacked(k, &mm, (size_t)((n_held - 1) * y_stride + n_out) * 4, weights, quantised, t);
    free(mm.acts);
    free(w), free(x), free(y), free(quantised), free(weights), free(index);
}

void check_mm(const struct uma_kernels * k, int one_in, struct tally * t) {
    static const int64_t ROWS[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 17, 33 };
    static const int64_t OUTS[] = { 1, 3, 8, 15, 16, 17, 37, 64 };
    static const int64_t INS[] = { 1, 2, 3, 4, 16, 17, 19 }; // in blocks: below, at and above one chunk of 512 columns
    for (size_t f = 0; f < sizeof FORMATS / sizeof *FORMATS; f++) {
        const struct format * format = FORMATS + f;
        for (size_t r = 0; r < sizeof ROWS / sizeof *ROWS; r++) {
            for (size_t o = 0; o < sizeof OUTS / sizeof *OUTS; o++) {
                // the types that are only repacked share most of their code
                if (rand_below(format->is_plain ? one_in : 3 * one_in)) continue;
                const int64_t blocks =
                    INS[rand_below(format->block == 256 ? 4 : 7)] * (format->block == 1 ? 1 + rand_below(40) : 1);
                one_case(k, format, OUTS[o], blocks * format->block, ROWS[r], rand_below(3) == 0, t);
            }
        }
        for (size_t i = 0; i < sizeof INS / sizeof *INS; i++) one_case(k, format, 21, INS[i] * format->block, 5, 0, t);
        // one or two rows by bytes have chunks of 8,192 columns
        for (int n_rows = 1; n_rows <= 3; n_rows++) one_case(k, format, 21, 8192 + format->block, n_rows, 0, t);
    }
}
