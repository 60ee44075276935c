// Checks whether the system lets threads start: libgomp ends the process if it cannot start its own.
#include "runtime/uma_runtime.h"

#include <pthread.h>
#include <stdlib.h>

static void * wait_for(void * lock) {
    pthread_mutex_lock(lock);
    pthread_mutex_unlock(lock);
    return NULL;
}

bool uma_threads_fit(int32_t n) {
    pthread_mutex_t lock    = PTHREAD_MUTEX_INITIALIZER;
    pthread_t *     threads = malloc(sizeof(*threads) * (size_t) (n > 0 ? n : 1));
    int32_t         n_begun = 0;
    if (!threads) {
        return false;
    }
    pthread_mutex_lock(&lock);
    while (n_begun < n && pthread_create(&threads[n_begun], NULL, wait_for, &lock) == 0) {
        n_begun++;
    }
    pthread_mutex_unlock(&lock);
    for (int32_t i = 0; i < n_begun; i++) {
        pthread_join(threads[i], NULL);
    }
    free(threads);
    return n_begun >= n;
}
