// Makes a process with one thread work in short turns: a timer's signal handler sleeps, whatever the process is doing.
//
// A scheduler lets a thread run for milliseconds before another one gets its processor back, whatever their priorities.
// A decode step of a small model takes one millisecond, and waits for the slowest of its threads. A process that yields
// by itself hardly delays such a step.
#include "runtime/uma_runtime.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <sys/time.h>
#include <time.h>

enum { FREE = 8 }; // turns between two checks while no pauses are wanted

static const volatile uint8_t * is_wanted;
static volatile sig_atomic_t    is_working;
static int64_t                  run_ns;
static int64_t                  pause_ns;

static void arm(int64_t ns) {
    struct itimerval once = { { 0, 0 }, { (time_t) (ns / 1000000000), (suseconds_t) (ns / 1000 % 1000000) } };
    setitimer(ITIMER_REAL, &once, NULL);
}

static void on_alarm(int number) {
    (void) number;
    const int  kept   = errno;
    const bool pauses = *is_wanted;
    if (pauses && is_working) {
        struct timespec pause = { (time_t) (pause_ns / 1000000000), (long) (pause_ns % 1000000000) };
        nanosleep(&pause, NULL);
    }
    if (is_working) {
        arm(pauses ? run_ns : FREE * run_ns);
    }
    errno = kept;
}

void uma_gentle_begin(const uint8_t * wanted, int64_t run, int64_t pause) {
    is_wanted  = wanted;
    run_ns     = run;
    pause_ns   = pause;
    is_working = true;
    struct sigaction action = { 0 };
    action.sa_handler = on_alarm;
    action.sa_flags   = SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(SIGALRM, &action, NULL);
    arm(run_ns);
}

void uma_gentle_end(void) {
    is_working = false;
    arm(0);
}
