// A second stack to run a function on, switched by hand: how a llama_decode call is left and re-entered.
// ucontext keeps the operating-system thread (OpenMP teams and CUDA devices belong to threads); where ucontext
// is not to be relied on (macOS, or UMA_FIBER_THREADS), a helper thread that runs only while its owner waits.
#pragma once

typedef struct uma_fiber uma_fiber;

uma_fiber * uma_fiber_new(void (*function)(void *), void * argument); // function must never return
void        uma_fiber_enter(uma_fiber * f); // from the owner: run until the fiber leaves
void        uma_fiber_leave(uma_fiber * f); // from the fiber: back to the owner
void        uma_fiber_free(uma_fiber * f);  // only while the fiber has left
