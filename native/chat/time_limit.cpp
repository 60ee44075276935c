#include "time_limit.h"

#include <ctime>
#include <stdexcept>

static constexpr unsigned STEPS = 256; // between two looks at the clock: a step takes a tenth of such a look

static thread_local double t_end_s = 0; // 0: there is no limit
static thread_local unsigned n_steps = 0;
static thread_local bool has_failed = false;

static double thread_s() {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return double(now.tv_sec) + double(now.tv_nsec) * 1e-9;
}

void chat_step();
void chat_step() {
    if (!t_end_s || (!has_failed && ++n_steps % STEPS) || (!has_failed && thread_s() < t_end_s)) return;
    has_failed = true;
    throw std::runtime_error("the time is over");
}

time_limit::time_limit(double seconds) {
    t_end_s = thread_s() + seconds;
    has_failed = false;
}

time_limit::~time_limit() { t_end_s = 0; }

bool time_limit::is_exceeded() const { return has_failed; }
