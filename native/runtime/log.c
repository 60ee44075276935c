// llama.cpp's log lines in a ring. Lines may come from any thread, also at interpreter exit, so no Python here.
#include "runtime/uma_runtime.h"

#include <pthread.h>
#include <string.h>

enum { N_LINES = 512, LINE_BYTES = 400 };

static struct {
    pthread_mutex_t lock;
    char    text[N_LINES][LINE_BYTES];
    int32_t level[N_LINES];
    int64_t head, tail; // lines written, lines taken; head - tail <= N_LINES
    int32_t min_level, last_level;
} ring = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void on_line(enum ggml_log_level level, const char * text, void * user) {
    (void) user;
    pthread_mutex_lock(&ring.lock);
    if (level == GGML_LOG_LEVEL_CONT) {
        level = ring.last_level; // a continuation has the level of the line it continues
    }
    ring.last_level = level;
    if (level == GGML_LOG_LEVEL_ERROR) {
        uma_guard_note_errno();
    }
    if ((int32_t) level >= ring.min_level) {
        if (ring.head - ring.tail == N_LINES) {
            ring.tail++;
        }
        const int64_t i = ring.head++ % N_LINES;
        strncpy(ring.text[i], text, LINE_BYTES - 1);
        ring.text[i][LINE_BYTES - 1] = 0;
        ring.level[i] = level;
    }
    pthread_mutex_unlock(&ring.lock);
}

void uma_log_install(int32_t min_level) {
    ring.min_level = min_level;
    llama_log_set(on_line, NULL);
}

int32_t uma_log_take(char * line, int32_t capacity, int32_t * level) {
    int32_t n = 0;
    pthread_mutex_lock(&ring.lock);
    if (ring.tail < ring.head) {
        const int64_t i = ring.tail++ % N_LINES;
        n = (int32_t) strnlen(ring.text[i], LINE_BYTES);
        n = n < capacity ? n : capacity;
        memcpy(line, ring.text[i], n);
        *level = ring.level[i];
    }
    pthread_mutex_unlock(&ring.lock);
    return n;
}
