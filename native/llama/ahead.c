// Begins the next decode call before Python asks for it, so that the device does not wait while Python plans the next
// tick and tokens are written to clients.
#include "llama/uma_llama.h"

#include <stdlib.h>
#include <string.h>

uma_ahead * uma_ahead_new(int32_t n_most, const volatile int32_t * interrupt) {
    uma_ahead * a = calloc(1, sizeof(*a));
    const size_t n = (size_t) n_most;
    int32_t * numbers = calloc(3 * n, sizeof(*numbers));
    int8_t  * want    = malloc(n);
    if (!a || !numbers || !want) {
        free(numbers);
        free(want);
        free(a);
        return NULL;
    }
    memset(want, 1, n);
    a->interrupt = interrupt;
    a->rows = (uma_rows) {
        .wake_fd = -1, .token = numbers, .pos = numbers + n, .seq_id = numbers + 2 * n, .want = want };
    return a;
}

void uma_ahead_free(uma_ahead * a) {
    if (a) {
        free(a->rows.token);
        free(a->rows.want);
        free(a);
    }
}

bool uma_ahead_is(const uma_ahead * a, const void * of, const uma_rows * rows) {
    const size_t n_bytes = (size_t) rows->n * sizeof(int32_t);
    return a && a->rows.n == rows->n && a->of == of && !memcmp(a->rows.token, rows->token, n_bytes) &&
        !memcmp(a->rows.pos, rows->pos, n_bytes) && !memcmp(a->rows.seq_id, rows->seq_id, n_bytes)
            && !memcmp(a->rows.want, rows->want, (size_t) rows->n);
}

bool uma_ahead_next(uma_ahead * a, const uma_rows * rows) {
    if (!a || !rows->starts_next || *a->interrupt) {
        return false;
    }
    for (int32_t i = 0; i < rows->n; i++) {
        if (!rows->want[i] || rows->out[i] < 0) {
            return false;
        }
        a->rows.token[i]  = rows->out[i];
        a->rows.pos[i]    = rows->pos[i] + 1;
        a->rows.seq_id[i] = rows->seq_id[i];
    }
    a->rows.n        = rows->n;
    a->rows.begun_ns = uma_now_ns();
    return true;
}
