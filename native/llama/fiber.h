// A second stack to run a function on, switched explicitly, so that a llama_decode call can be left and re-entered.
// ucontext keeps the operating-system thread (OpenMP teams and CUDA devices belong to threads). If ucontext is
// unreliable (macOS, or UMA_FIBER_THREADS), a helper thread is used that runs only while its owner waits.
#pragma once

typedef struct uma_fiber uma_fiber;

uma_fiber * uma_fiber_new(void (*function)(void *), void * argument); // function must never return
void        uma_fiber_enter(uma_fiber * f); // from the owner: run until the fiber leaves
void        uma_fiber_leave(uma_fiber * f); // from the fiber: back to the owner
void        uma_fiber_free(uma_fiber * f);  // only while the fiber has left
