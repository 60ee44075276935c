// Fibers on ucontext: same thread, two stacks. POSIX.1-2001 makecontext/swapcontext.
#if !defined(__APPLE__) && !defined(UMA_FIBER_THREADS)

#include "fiber.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

enum { STACK_BYTES = 8 * 1024 * 1024 }; // as a main thread usually has; pages are allocated when used

struct uma_fiber {
    ucontext_t owner, inside;
    void (*function)(void *);
    void * argument;
    char * stack; // with a guard page below
};

// makecontext passes ints only: the pointer travels in two halves.
static void trampoline(unsigned high, unsigned low) {
    uma_fiber * f = (uma_fiber *) (uintptr_t) (((uint64_t) high << 32) | low);
    f->function(f->argument);
    abort();
}

uma_fiber * uma_fiber_new(void (*function)(void *), void * argument) {
    uma_fiber * f = calloc(1, sizeof(*f));
    if (!f) {
        return NULL;
    }
    const size_t guard = (size_t) sysconf(_SC_PAGESIZE);
    f->stack = mmap(NULL, STACK_BYTES + guard, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
        0);
    if (f->stack == MAP_FAILED) {
        free(f);
        return NULL;
    }
    mprotect(f->stack, guard, PROT_NONE);
    f->function = function;
    f->argument = argument;
    getcontext(&f->inside);
    f->inside.uc_stack.ss_sp   = f->stack + guard;
    f->inside.uc_stack.ss_size = STACK_BYTES;
    f->inside.uc_link          = NULL;
    const uint64_t self = (uint64_t) (uintptr_t) f;
    makecontext(&f->inside, (void (*)(void)) trampoline, 2, (unsigned) (self >> 32), (unsigned) self);
    return f;
}

void uma_fiber_enter(uma_fiber * f) { swapcontext(&f->owner, &f->inside); }
void uma_fiber_leave(uma_fiber * f) { swapcontext(&f->inside, &f->owner); }

void uma_fiber_free(uma_fiber * f) {
    if (f) {
        munmap(f->stack, STACK_BYTES + (size_t) sysconf(_SC_PAGESIZE));
        free(f);
    }
}

#endif
