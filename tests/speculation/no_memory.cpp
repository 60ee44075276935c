// Preloaded: while `is_short` is set, C++ gets no memory, and a reserve that is kept for such a case is used up.
#include <cstdlib>
#include <new>

extern "C" int is_short;
int is_short = 0;

void * operator new(std::size_t size) {
    void * const memory = is_short ? nullptr : std::malloc(size ? size : 1);
    if (!memory) {
        throw std::bad_alloc();
    }
    return memory;
}

void operator delete(void * memory) noexcept { std::free(memory); }

void operator delete(void * memory, std::size_t) noexcept { std::free(memory); }
