// Time, logs, failures and threads, for all of our C.
// The part between the cdef marks is read by the bindings generator as it stands.
#pragma once

#include "llama.h"

#include <stdbool.h>
#include <stdint.h>

/* cdef begin */

// -- clock.c: the monotonic clock of all deadlines here (Python: time.monotonic_ns)
int64_t uma_now_ns(void);

// -- gentle.c: makes a process with one thread work in short turns
// from now on, while *wanted is not 0: runs for run_ns, pauses for pause_ns
void uma_gentle_begin(const uint8_t * wanted, int64_t run_ns, int64_t pause_ns);
void uma_gentle_end(void);                                                       // idle: stops the timer

// -- log.c: llama.cpp's log lines, kept in a ring until Python drains them
// a ggml_log_level; lines below it are dropped at once
void    uma_log_install(int32_t min_level);
int32_t uma_log_take(char * line, int32_t capacity, int32_t * level); // bytes of the oldest line, 0: none left

// -- guard.cpp: calls that return a failure where llama.cpp throws or asserts (guard.h lists them)
enum { UMA_BROKEN = -1000 }; // in place of a return code: something was thrown in the middle of a computation
// set memory aside for calls that must not fail; false: there is none
bool         uma_guard_reserve(void);
void         uma_guard_install(void);                              // once, before anything is loaded
// whether this thread's last loading call failed because memory ran out
bool         uma_guard_is_short(void);
const char * uma_guard_message(void);                              // what that call threw; "": nothing

// -- threads.c: starts threads with stacks of the usual size to see whether they fit
bool         uma_threads_fit(int32_t n);                           // whether this many more threads can run at once

// -- abort.c: an abort callback that reads one int (Python callbacks inside compute wait for the GIL at every node)
bool uma_abort_cb(void * flag);                                    // flag: int32_t *, nonzero aborts

// -- accel.c: our kernels inside ggml's CPU backend (native/ggml-uma), for every model and context of the process
// which kernels, NULL: the best; call before the first model is loaded. -1: this processor cannot run them
int32_t      uma_accel_use(const char * isa);
// call before the first model is loaded; -1: nothing faster than ggml's for this processor
int32_t      uma_accel_register(void);
// bit set: 1 matmul, 2 experts' matmul, 4 attention; 0 none. Not while a graph computes
void         uma_accel_enable(uint32_t ops);
const char * uma_accel_isa(void);           // instruction set in use
// Weights laid out for our products: the bytes that a matrix then takes (0: it stays as the file has it), and the
// buffer type that repacks them.
size_t       uma_accel_repacked_bytes(const struct ggml_tensor * weights);
// version of the layout; repacked bytes are the same for the same uma_accel_isa and version
int32_t      uma_accel_repacked_version(void);
ggml_backend_buffer_type_t uma_accel_repacked_type(void);
// whether our kernels compute products with these weights, for any number of rows
bool         uma_accel_multiplies(const struct ggml_tensor * weights);

/* cdef end */

void uma_guard_note_errno(void); // called when an error is reported: notes whether memory ran out

#include "runtime/guard.h"
