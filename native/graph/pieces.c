// The learned cost of pieces of a graph: see pieces.h.
#include "pieces.h"

#include <string.h>

static const double ALMOST = 0.99; // an unfinished chunk is at most this far: its total is an estimate
enum { FIRST_PIECES = 16 }; // until a kind has been in this many pieces, its cost is a guess
enum { GEMV_ROWS = 4 }; // up to this many rows, the bytes of a matmul's weights set its cost, not its arithmetic

static enum uma_kind kind_of(const struct ggml_tensor * t) {
    switch (t->op) {
        case GGML_OP_MUL_MAT:        return t->ne[1] <= GEMV_ROWS ? UMA_GEMV : UMA_MATMUL;
        case GGML_OP_MUL_MAT_ID:     return UMA_EXPERTS;
        case GGML_OP_FLASH_ATTN_EXT:
        case GGML_OP_CUSTOM:         return UMA_ATTENTION;
        default:                     return UMA_OTHER;
    }
}

static double work_of(const struct ggml_tensor * t, enum uma_kind kind, double attention_work) {
    switch (kind) {
        case UMA_MATMUL:
        case UMA_EXPERTS:   return (double) ggml_nelements(t) * t->src[0]->ne[0];
        case UMA_GEMV:      return (double) ggml_nbytes(t->src[0]);
        case UMA_ATTENTION: return t->op == GGML_OP_CUSTOM ? attention_work : (double) ggml_nelements(t->src[0])
            * t->src[1]->ne[1] * 2;
        default:            return (double) ggml_nelements(t);
    }
}

static double sum(const double * x) {
    double s = 0;
    for (int i = 0; i < UMA_N_KINDS; i++) {
        s += x[i];
    }
    return s;
}

// Median of the first n of three values; the lower one of two.
static double median(const double * x, int64_t n) {
    if (n < 2) {
        return x[0];
    }
    const double low = x[0] < x[1] ? x[0] : x[1], high = x[0] < x[1] ? x[1] : x[0];
    return n < 3 || x[2] < low ? low : x[2] > high ? high : x[2];
}

// Spreads a piece's error over the kinds it was predicted from, by their shares. The median of the last errors counts,
// because a piece whose thread lost its core may take ten times as long. The correction is slow, because the cost of a
// unit of work also depends on the size of the chunk.
static void learn(uma_pieces * p, int64_t elapsed_ns) {
    const double predicted = sum(p->piece);
    if (predicted <= 0) {
        return;
    }
    for (int i = 0; i < UMA_N_KINDS; i++) {
        const double share = p->piece[i] / predicted;
        if (share < 0.2) {
            continue;
        }
        const int64_t n = p->n_seen[i]++;
        p->recent[i][n % UMA_N_RECENT] = elapsed_ns / predicted;
        const double ratio  = median(p->recent[i], n + 1);
        const bool   is_new = n < FIRST_PIECES;
        const double low = is_new ? 0.02 : 0.7, high = is_new ? 50.0 : 1.4;
        const double bounded = ratio < low ? low : ratio > high ? high : ratio;
        p->ns_per_work[i] *= 1.0 + (is_new ? 0.7 : 0.1) * share * (bounded - 1.0);
    }
}

void uma_pieces_init(uma_pieces * p) {
    memset(p, 0, sizeof(*p));
    // First guesses, soon replaced: 50 G multiply-adds/s, 20 GB/s, 1 element/ns.
    p->ns_per_work[UMA_MATMUL] = p->ns_per_work[UMA_EXPERTS] = p->ns_per_work[UMA_ATTENTION] = 0.02;
    p->ns_per_work[UMA_GEMV]   = 0.05;
    p->ns_per_work[UMA_OTHER]  = 1.0;
}

void uma_pieces_begin(uma_pieces * p, int32_t n) {
    p->heaviest = 0;
    p->done_ns  = 0;
    p->total_ns = p->last_n > 0 ? p->last_total_ns * n / p->last_n : 0;
    memset(p->piece, 0, sizeof(p->piece));
}

double uma_pieces_count(uma_pieces * p, const struct ggml_tensor * t, double attention_work) {
    const enum uma_kind kind = kind_of(t);
    const double ns = work_of(t, kind, attention_work) * p->ns_per_work[kind];
    p->piece[kind] += ns;
    return ns;
}

bool uma_pieces_fits(const uma_pieces * p, const struct ggml_tensor * t, double attention_work, int64_t limit_ns) {
    const enum uma_kind kind = kind_of(t);
    return sum(p->piece) + work_of(t, kind, attention_work) * p->ns_per_work[kind] <= limit_ns;
}

bool uma_pieces_add(uma_pieces * p, const struct ggml_tensor * t, int64_t quantum_ns) {
    const enum uma_kind kind = kind_of(t);
    const double ns = uma_pieces_count(p, t, 0);
    const double bytes = kind == UMA_GEMV ? work_of(t, kind, 0) : 0;
    p->head_bytes = bytes > p->head_bytes ? bytes : p->head_bytes;
    p->heaviest   = ns > p->heaviest ? ns : p->heaviest;
    return sum(p->piece) + p->heaviest > quantum_ns && kind != UMA_OTHER;
}

double uma_pieces_planned_ns(const uma_pieces * p) { return sum(p->piece); }

double uma_pieces_head_ns(const uma_pieces * p) { return p->head_bytes * p->ns_per_work[UMA_GEMV]; }

void uma_pieces_drop(uma_pieces * p) { memset(p->piece, 0, sizeof(p->piece)); }

void uma_pieces_end(uma_pieces * p, int64_t elapsed_ns) {
    learn(p, elapsed_ns);
    p->done_ns += sum(p->piece);
    uma_pieces_drop(p);
}

void uma_pieces_finish(uma_pieces * p, int32_t n) {
    p->last_total_ns = p->done_ns;
    p->last_n        = n;
}

double uma_pieces_fraction(const uma_pieces * p) {
    return p->done_ns < ALMOST * p->total_ns ? p->done_ns / p->total_ns : ALMOST;
}
