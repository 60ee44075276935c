// Divides an operation's work among the threads: runs of weights, which lie in memory one after the other.
//
// Each thread has a share of neighbouring runs and takes them in order, so the weights that a run prefetches beyond its
// end are the ones that the thread multiplies next. A thread that has finished its share takes runs of others, because
// one that lost its core must not hold up the operation.
#ifndef UMA_GGML_RUNS_H
#define UMA_GGML_RUNS_H

#include <stdatomic.h>

#include "op.h"

// Many short runs end at nearly the same time on all threads. (A Xeon, 2 threads, steps of 1, 2, 4 and 8 rows, in turn
// with four runs per thread that went to whichever thread was free: the 0.5B Q8_0 takes 0.92, 0.93, 0.97 and 0.96 of
// the time, and 0.93, 0.92, 0.92 and 0.95 in a second run; the 1B Q4_0 0.96, 0.91, 0.97 and 0.94; the 1B Q4_K_M 0.99,
// 0.99, 0.99 and 0.98, and 1.00, 0.95 and 0.96 with 1, 4 and 8 rows; a mixture of experts in Q4_K_M 0.96 with 1, 4 and
// 8. With 2 and 16 threads, shares of 8, 32 and 64 runs take 0.98 to 1.08 of the time of 16, 1.01 in the mean.)
enum { UMA_RUNS_PER_THREAD = 16 };

struct uma_share { // of one thread, in a cache line of its own
    _Atomic int32_t n_taken;
    char pad[60];
};

static inline size_t uma_shares_bytes(int n_threads) { return (size_t)n_threads * sizeof(struct uma_share); }

// The shares are the beginning of the work buffer.
static inline struct uma_share * uma_shares_at(const struct ggml_compute_params * params) {
    return (struct uma_share *)(void *)uma_align(params->wdata);
}

// One thread calls this, before a barrier.
static inline void uma_start_runs(struct uma_share * shares, int n_threads) {
    for (int i = 0; i < n_threads; i++) atomic_store_explicit(&shares[i].n_taken, 0, memory_order_relaxed);
}

// Returns the next run for thread `ith`, or n_runs if none is left.
static inline int64_t uma_next_run(struct uma_share * shares, int64_t n_runs, int ith, int n_threads) {
    for (int i = 0; i < n_threads; i++) {
        const int owner = (ith + i) % n_threads;
        const int64_t first = n_runs * owner / n_threads, end = n_runs * (owner + 1) / n_threads;
        const int64_t run = first + atomic_fetch_add_explicit(&shares[owner].n_taken, 1, memory_order_relaxed);
        if (run < end) return run;
    }
    return n_runs;
}

#endif
