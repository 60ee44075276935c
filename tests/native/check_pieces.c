// What pieces of a graph are predicted to take, on a machine that is disturbed: pieces of known cost, measured with
// noise and with preemptions. Prints the share of undisturbed pieces whose prediction is within a quarter of what they
// took, after so many pieces.
#include "pieces.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t seed;

static double draw(void) { // 0..1, xorshift64*
    seed ^= seed >> 12;
    seed ^= seed << 25;
    seed ^= seed >> 27;
    return (double) ((seed * 2685821657736338717ull) >> 11) / 9007199254740992.0;
}

// True ns per unit of work; attention's nodes get their work by `attention_work`.
static const double COST[3] = { 0.004, 0.15, 0.3 };

static struct ggml_tensor weight, other, nodes[3];

static void make_nodes(void) {
    weight = (struct ggml_tensor) { .type = GGML_TYPE_F32, .ne = { 1024, 2048, 1, 1 } };
    other  = (struct ggml_tensor) { .type = GGML_TYPE_F32, .ne = { 1024, 128, 1, 1 } };
    nodes[0] = (struct ggml_tensor) {
        .op = GGML_OP_MUL_MAT, .type = GGML_TYPE_F32, .ne = { 2048, 128, 1, 1 }, .src = { &weight, &other } };
    nodes[1] = (struct ggml_tensor) { .op = GGML_OP_CUSTOM, .type = GGML_TYPE_F32, .ne = { 1024, 128, 1, 1 } };
    nodes[2] = (struct ggml_tensor) { .op = GGML_OP_MUL, .type = GGML_TYPE_F32, .ne = { 1024, 128, 1, 1 } };
}

static const double WORK[3] = { 2048.0 * 128 * 1024, 2e6, 1024.0 * 128 };

int main(int argc, char ** argv) {
    const int    n_warm  = atoi(argv[1]), n_looked = 400;
    const double share   = atof(argv[2]); // of pieces that are preempted
    const double slower  = atof(argv[3]); // what all pieces take from then on, times what they took
    int          n_right = 0, n_calm = 0;
    seed = (uint64_t) (argc > 4 ? atoll(argv[4]) : 1) * 0x9E3779B97F4A7C15ull + 1;
    make_nodes();
    uma_pieces p;
    uma_pieces_init(&p);
    uma_pieces_begin(&p, 128);
    for (int i = 0; i < 200 + n_warm + n_looked; i++) {
        double took = 0;
        const int n_nodes = 1 + (int) (draw() * 4);
        for (int k = 0; k < n_nodes; k++) {
            const int which = (int) (draw() * 3);
            uma_pieces_count(&p, &nodes[which], WORK[1]);
            took += WORK[which] * COST[which];
        }
        took *= (0.95 + 0.1 * draw()) * (i < 200 ? 1.0 : slower);
        const bool is_disturbed = i < 3 || draw() < share;
        const double predicted = uma_pieces_planned_ns(&p);
        if (i >= 200 + n_warm && !is_disturbed) {
            n_calm++;
            n_right += fabs(predicted / took - 1.0) < 0.25;
        }
        uma_pieces_end(&p, (int64_t) (took * (is_disturbed ? 5.0 + 25.0 * draw() : 1.0)));
    }
    printf("%.4f\n", (double) n_right / n_calm);
    return 0;
}
