// See guard.h. An assertion becomes an exception only on the thread that is inside a guarded call, so that it unwinds
// C++ frames of the libraries and C frames with unwind tables (on by default for x86-64 and AArch64), never Python's.
#define UMA_GUARD_ITSELF
#include "guard.h"

extern "C" {
#include "runtime/uma_runtime.h"
}

#include <atomic>
#include <cerrno>
#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <stdexcept>
#include <type_traits>

namespace {

// more than a decode call's scratch, little enough not to be missed; only address space until it is used
constexpr size_t RESERVE_BYTES = 16 << 20;

std::atomic<void *> reserve{ nullptr };

thread_local int  n_inside    = 0;
thread_local bool is_short    = false; // memory ran out since the outermost guarded call began
thread_local char message[512] = "";

thread_local sigjmp_buf * way_back = nullptr; // leads out of the outermost guarded call

struct sigaction former; // the handler that was there before

void note(const char * text) { std::snprintf(message, sizeof(message), "%s", text); }

// Drops the folders from "file:line: what": where the libraries were compiled helps nobody.
const char * without_folders(const char * text) {
    const char * name = text;
    for (const char * p = text; *p && *p != ' '; p++) {
        name = *p == '/' ? p + 1 : name;
    }
    return name;
}

void on_abort(const char * text) {
    if (n_inside > 0) {
        uma_guard_note_errno();
        throw std::runtime_error(without_folders(text));
    }
    std::fprintf(stderr, "%s\n", text); // as ggml does without a callback; it aborts when this returns
}

// llama.cpp divides by counts from a model's file, and some processors trap if one is 0. What the call holds is lost,
// because no destructor runs.
void on_trap(int number) {
    if (way_back) {
        note("a division by zero: a count of the model is 0, or missing");
        siglongjmp(*way_back, 1);
    }
    sigaction(number, &former, nullptr); // the instruction runs again
}

// Done for every call: a handler that was installed later, such as Python's faulthandler, would write all stacks before
// it calls this one.
void arm() {
    struct sigaction action = {}, found;
    action.sa_handler       = on_trap;
    action.sa_flags         = SA_NODEFER; // a jump leaves the signals that are blocked as they are
    sigaction(SIGFPE, &action, &found);
    if (found.sa_handler != on_trap) {
        former = found;
    }
}

// operator new calls this when there is no memory, and tries again if this returns.
void on_no_memory() {
    is_short = true;
    void * const held = reserve.exchange(nullptr);
    if (!held) {
        throw std::bad_alloc();
    }
    std::free(held);
}

class inside {
  public:
    explicit inside(bool is_loading) : is_loading(is_loading) {
        if (is_loading && n_inside++ == 0) {
            errno    = 0;
            is_short = false;
            message[0] = 0;
        }
    }
    ~inside() {
        n_inside -= is_loading;
        if (n_inside == 0) {
            way_back = nullptr;
        }
    }

  private:
    bool is_loading;
};

template <typename T, typename F> T guarded(bool is_loading, T failed, F call) {
    const inside here(is_loading);
    sigjmp_buf   place;
    if (std::is_pointer_v<T> && n_inside == 1) { // not for tokenizing, which divides by no counts and is frequent
        arm();
        if (sigsetjmp(place, 0)) {
            n_inside = 1;
            return failed;
        }
        way_back = &place;
    }
    try {
        return call();
    } catch (const std::bad_alloc & error) {
        is_short = true;
        note(error.what());
    } catch (const std::exception & error) {
        note(error.what());
    } catch (...) {
        note("an exception that is not a std::exception");
    }
    return failed;
}

} // namespace

extern "C" {

bool uma_guard_reserve(void) {
    if (reserve.load()) {
        return true;
    }
    void * none = nullptr, * const fresh = std::malloc(RESERVE_BYTES);
    if (!reserve.compare_exchange_strong(none, fresh)) {
        std::free(fresh);
        return true;
    }
    return fresh != nullptr;
}

void uma_guard_install(void) {
    uma_guard_reserve();
    ggml_set_abort_callback(on_abort);
    std::set_new_handler(on_no_memory);
}

void uma_guard_note_errno(void) { is_short |= n_inside > 0 && errno == ENOMEM; }

bool uma_guard_is_short(void) { return is_short; }

const char * uma_guard_message(void) { return message; }

#define LOADING(type, name, parameters, arguments, failed) \
    type uma_guarded_##name parameters { return guarded<type>(true, failed, [&] { return name arguments; }); }
#define COMPUTING(type, name, parameters, arguments, failed) \
    type uma_guarded_##name parameters { return guarded<type>(false, failed, [&] { return name arguments; }); }

UMA_GUARDED_LOADING(LOADING)
UMA_GUARDED_COMPUTING(COMPUTING)

}
