// Fibers on a helper thread that runs only while its owner waits in uma_fiber_enter.
#if defined(__APPLE__) || defined(UMA_FIBER_THREADS)

#include "fiber.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

struct uma_fiber {
    pthread_t       thread;
    pthread_mutex_t lock;
    pthread_cond_t  turn;
    bool            is_inside; // whose turn it is
    bool            is_over;
    void (*function)(void *);
    void *          argument;
};

static void await(uma_fiber * f, bool inside) {
    while (f->is_inside != inside && !f->is_over) {
        pthread_cond_wait(&f->turn, &f->lock);
    }
}

static void * body(void * self) {
    uma_fiber * f = self;
    pthread_mutex_lock(&f->lock);
    await(f, true);
    const bool is_over = f->is_over;
    pthread_mutex_unlock(&f->lock);
    if (!is_over) {
        f->function(f->argument);
    }
    return NULL;
}

uma_fiber * uma_fiber_new(void (*function)(void *), void * argument) {
    uma_fiber * f = calloc(1, sizeof(*f));
    if (!f) {
        return NULL;
    }
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->turn, NULL);
    f->function = function;
    f->argument = argument;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 8 * 1024 * 1024);
    const int rc = pthread_create(&f->thread, &attributes, body, f);
    pthread_attr_destroy(&attributes);
    if (rc != 0) {
        free(f);
        return NULL;
    }
    return f;
}

static void pass_turn(uma_fiber * f, bool to_inside) {
    pthread_mutex_lock(&f->lock);
    f->is_inside = to_inside;
    pthread_cond_broadcast(&f->turn);
    await(f, !to_inside);
    const bool is_over = f->is_over;
    pthread_mutex_unlock(&f->lock);
    if (is_over && !to_inside) {
        pthread_exit(NULL);
    }
}

void uma_fiber_enter(uma_fiber * f) { pass_turn(f, true); }
void uma_fiber_leave(uma_fiber * f) { pass_turn(f, false); }

void uma_fiber_free(uma_fiber * f) {
    if (f) {
        pthread_mutex_lock(&f->lock);
        f->is_over = true;
        pthread_cond_broadcast(&f->turn);
        pthread_mutex_unlock(&f->lock);
        pthread_join(f->thread, NULL);
        pthread_cond_destroy(&f->turn);
        pthread_mutex_destroy(&f->lock);
        free(f);
    }
}

#endif
