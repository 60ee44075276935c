// Memory for repacked weights. Writing a tensor repacks it; it cannot be read back.
#include "repacked.h"

#include <algorithm>
#include <cstdlib>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace {

constexpr size_t LARGE_PAGE = size_t(2) << 20;

void free_buffer(ggml_backend_buffer_t buffer) { std::free(buffer->context); }

void * base(ggml_backend_buffer_t buffer) { return buffer->context; }

// Sets rows as they are in the file: rows of one matrix, or of several experts' matrices one after another. In each
// matrix the rows begin at a panel's border, and end at a border or at the matrix's end. Threads may set different rows
// at the same time.
void set_tensor(ggml_backend_buffer_t, ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    const uma_mm_table * table = uma_kernels()->mm;
    const uma_type type = uma_type_of(tensor->type);
    const int64_t n_in = tensor->ne[0], n_out = tensor->ne[1];
    const size_t row_bytes = tensor->nb[1];
    GGML_ASSERT(offset % row_bytes == 0 && size % row_bytes == 0);
    const char * from = static_cast<const char *>(data);
    for (int64_t row = int64_t(offset / row_bytes), end = row + int64_t(size / row_bytes), n; row < end;
        row += n, from += size_t(n) * row_bytes) {
        const int64_t matrix = row / n_out, first = row % n_out;
        n = std::min(end - row, n_out - first);
        GGML_ASSERT(first % table->panel == 0 && (n % table->panel == 0 || first + n == n_out));
        char * to = static_cast<char *>(tensor->data) + size_t(matrix) * table->repacked_bytes(type, n_out, n_in);
        table->repack(type, n, n_in, from, row_bytes, to + table->repacked_bytes(type, first, n_in));
    }
}

void clear(ggml_backend_buffer_t buffer, uint8_t value) { memset(buffer->context, value, buffer->size); }

constexpr ggml_backend_buffer_i BUFFER = {
    free_buffer, base, nullptr, nullptr, set_tensor, nullptr, nullptr, nullptr, nullptr, clear, nullptr };

const char * name(ggml_backend_buffer_type_t) { return "UMA"; }

// Allocates large pages if the system has them: every call reads all weights, and they have more 4 KiB pages than a
// core's TLB holds.
ggml_backend_buffer_t allocate(ggml_backend_buffer_type_t type, size_t size) {
    const size_t padded = (size + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE;
    void * memory = std::aligned_alloc(LARGE_PAGE, padded);
    if (!memory) return nullptr;
#if defined(__linux__)
    madvise(memory, padded, MADV_HUGEPAGE); // without large pages the kernel uses small ones
#endif
    return ggml_backend_buffer_init(type, BUFFER, memory, size);
}

size_t alignment(ggml_backend_buffer_type_t) { return 64; }

size_t allocated_bytes(ggml_backend_buffer_type_t, const ggml_tensor * tensor) { return uma_repacked_bytes(tensor); }

}  // namespace

const ggml_backend_buffer_type_i uma_repacked_interface = {
    name, allocate, alignment, nullptr, allocated_bytes, nullptr };

size_t uma_repacked_bytes(const ggml_tensor * weights) {
    const uma_type type = uma_type_of(weights->type);
    // products of a single row would be slower than ggml's, or have not been measured
    if (uma_kernels()->mm->min_rows > 1) return 0;
    if (type == UMA_N_TYPES || weights->ne[3] != 1) return 0;
    return uma_kernels()->mm->repacked_bytes(type, weights->ne[1], weights->ne[0]) * size_t(weights->ne[2]);
}
