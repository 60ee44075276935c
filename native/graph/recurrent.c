// Layers with a state of fixed size per sequence: a short convolution over the last rows, and a linear recurrence.
// Operations of a ggml graph.
//
// A batch's rows come in stretches: consecutive rows of one sequence, with the state before the first row and a place
// for the state after the last. Rows are computed one by one in the order of their sequence, so a row's bits do not
// depend on what else is in the batch.
#include "graph/custom.h"
#include "graph/uma_graph.h"

#include <string.h>

enum {
    CHANNELS = 64, // channels of a convolution that a thread takes at once
    TAPS     = 16, // most earlier rows that a convolution reads
    COLUMNS  = 16, // columns of a head's state that a thread takes at once: 8 KiB of 128 floats each stay in L1 cache
    LANES    = 16,
    DIM      = 512, // longest column
};

typedef float lanes __attribute__((vector_size(LANES * sizeof(float)), aligned(sizeof(float)), may_alias));

static const float * row_at(const struct ggml_tensor * t, int32_t head, int32_t row) {
    return (const float *) (const void *) ((const char *) t->data + (size_t) head * t->nb[1] + (size_t) row * t->nb[2]);
}

// Element (head, row) of a tensor (heads, rows).
static float scalar_at(const struct ggml_tensor * t, int32_t head, int32_t row) {
    return *(const float *) (const void *) ((const char *) t->data + (size_t) head * t->nb[0]
        + (size_t) row * t->nb[1]);
}

// Convolves channels first .. first + n of all stretches. `taps`: (n_taps + 1, CHANNELS), the weights of the oldest row
// first.
static void convolve(struct ggml_tensor * dst, const uma_recurrence * r, int32_t first, int32_t n, const float * taps) {
    const struct ggml_tensor * x = dst->src[0];
    static const float zeros[CHANNELS];
    for (int32_t s = 0; s < r->plan->n; s++) {
        const uma_stretch * stretch = &r->plan->at[s];
        const float * seen[TAPS + 1]; // the rows that make up the current output, oldest first
        for (int32_t i = 0; i < stretch->n_rows + r->n_taps; i++) {
            // row i - n_taps of the stretch; negative ones are the rows that the state holds
            const int32_t row = i - r->n_taps;
            const float * in = row >= 0
                ? (const float *) (const void *) ((const char *) x->data
                    + (size_t) (stretch->first_row + row) * x->nb[1]) + first
                : stretch->from ? stretch->from + r->at + (int64_t) i * r->n_channels + first : zeros;
            if (i >= stretch->n_rows) { // one of the last rows goes into the state after the stretch
                memcpy(stretch->to + r->at + (int64_t) (i - stretch->n_rows) * r->n_channels + first, in,
                    (size_t) n * sizeof(float));
            }
            if (i < r->n_taps) {
                seen[i] = in;
                continue;
            }
            seen[r->n_taps] = in;
            float * out = (float *) (void *) ((char *) dst->data + (size_t) (stretch->first_row + row) * dst->nb[1])
                + first;
            for (int32_t c = 0; c < n; c++) {
                float sum = 0;
                for (int32_t t = 0; t <= r->n_taps; t++) {
                    sum += seen[t][c] * taps[t * CHANNELS + c];
                }
                out[c] = sum;
            }
            memmove(seen, seen + 1, (size_t) r->n_taps * sizeof(seen[0]));
        }
    }
}

void uma_convolution(struct ggml_tensor * dst, int ith, int nth, void * recurrence) {
    const uma_recurrence * r = recurrence;
    const float * weights = dst->src[1]->data;
    const int32_t n_blocks = (r->n_channels + CHANNELS - 1) / CHANNELS;
    for (int32_t block = (int32_t) ((int64_t) n_blocks * ith / nth);
        block < (int32_t) ((int64_t) n_blocks * (ith + 1) / nth); block++) {
        const int32_t first = block * CHANNELS, n = r->n_channels - first < CHANNELS ? r->n_channels - first : CHANNELS;
        float taps[(TAPS + 1) * CHANNELS];
        for (int32_t c = 0; c < n; c++) {
            for (int32_t t = 0; t <= r->n_taps; t++) {
                taps[t * CHANNELS + c] = weights[(int64_t) (first + c) * (r->n_taps + 1) + t];
            }
        }
        convolve(dst, r, first, n, taps);
    }
}

static float sum_of(const lanes * x) {
    float half[LANES / 2];
    for (int l = 0; l < LANES / 2; l++) {
        half[l] = (*x)[l] + (*x)[l + LANES / 2];
    }
    for (int n = LANES / 4; n > 0; n /= 2) {
        for (int l = 0; l < n; l++) {
            half[l] += half[l + n];
        }
    }
    return half[0];
}

typedef struct step { // one row of one head
    const float * q, * k, * v;
    float decay, beta;
} step;

// Updates one column of a head's state: S <- decay S + k u. u is v, or with the delta rule beta times the part of v
// that the state did not give for k. Returns the state's answer to q.
static inline float advance(float * column, const uma_recurrence * r, const step * t, float v) {
    const int32_t n = r->dim_k / LANES;
    lanes * s = (lanes *) (void *) column;
    const lanes * k = (const lanes *) (const void *) t->k, * q = (const lanes *) (const void *) t->q;
    float u = v;
    if (r->is_delta) {
        lanes known = { 0 };
        for (int32_t i = 0; i < n; i++) {
            known += s[i] * t->decay * k[i];
        }
        u = (v - sum_of(&known)) * t->beta;
    }
    lanes answer = { 0 };
    for (int32_t i = 0; i < n; i++) {
        s[i] = s[i] * t->decay + k[i] * u;
        answer += s[i] * q[i];
    }
    return sum_of(&answer) * r->scale;
}

// Computes columns first .. first + n of a head, in all stretches.
static void recur(struct ggml_tensor * dst, const uma_recurrence * r, int32_t head, int32_t first, int32_t n) {
    float state[COLUMNS * DIM];
    const size_t bytes = (size_t) n * (size_t) r->dim_k * sizeof(float);
    const int64_t at = r->at + (int64_t) r->n_taps * r->n_channels + ((int64_t) head * r->dim_v + first) * r->dim_k;
    const int32_t group = r->is_tiled ? head % r->n_head_k : head / (r->n_head / r->n_head_k);
    for (int32_t s = 0; s < r->plan->n; s++) {
        const uma_stretch * stretch = &r->plan->at[s];
        if (stretch->from) {
            memcpy(state, stretch->from + at, bytes);
        } else {
            memset(state, 0, bytes);
        }
        for (int32_t row = stretch->first_row; row < stretch->first_row + stretch->n_rows; row++) {
            const step t = {
                row_at(dst->src[0], group, row), row_at(dst->src[1], group, row), row_at(dst->src[2], head, row),
                scalar_at(dst->src[3], head, row), r->is_delta ? scalar_at(dst->src[4], head, row) : 0,
            };
            float * out = (float *) (void *) ((char *) dst->data + (size_t) head * dst->nb[1]
                + (size_t) row * dst->nb[2]) + first;
            for (int32_t j = 0; j < n; j++) {
                out[j] = advance(state + (int64_t) j * r->dim_k, r, &t, t.v[first + j]);
            }
        }
        memcpy(stretch->to + at, state, bytes);
    }
}

void uma_recur(struct ggml_tensor * dst, int ith, int nth, void * recurrence) {
    const uma_recurrence * r = recurrence;
    const int32_t n_blocks = (r->dim_v + COLUMNS - 1) / COLUMNS;
    const int64_t n_tasks = (int64_t) r->n_head * n_blocks;
    for (int64_t task = n_tasks * ith / nth; task < n_tasks * (ith + 1) / nth; task++) {
        const int32_t first = (int32_t) (task % n_blocks) * COLUMNS;
        recur(dst, r, (int32_t) (task / n_blocks), first, r->dim_v - first < COLUMNS ? r->dim_v - first : COLUMNS);
    }
}

ggml_custom_op_t uma_convolution_op(void) { return uma_convolution; }

ggml_custom_op_t uma_recur_op(void) { return uma_recur; }

double uma_recurrent_work(const struct ggml_tensor * t) {
    const struct ggml_custom_op_params custom = uma_custom_of(t);
    const uma_recurrence * r = custom.userdata;
    if (custom.fun == uma_convolution) {
        return (double) ggml_nelements(t) * (r->n_taps + 1);
    }
    return custom.fun == uma_recur ? (double) ggml_nelements(t) * r->dim_k * 3 : -1;
}
