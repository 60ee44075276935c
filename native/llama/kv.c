// Moves K and V rows without llama.cpp's state blobs. A blob is made and read in one piece; these copies are sliced,
// skip the host on a device, and can copy part of a sequence. Valid for attention caches in stream mode with V stored
// by rows (flash attention); LlamaEngine proves that on the real model before it uses them.
#include "llama/uma_llama.h"

#include <string.h>
#if defined(__linux__) || defined(__APPLE__)
#include <sys/mman.h>
#include <unistd.h>
#endif

enum {
    SLICE_BYTES  = 512 * 1024,
    DEVICE_SLICE = 16 * 1024 * 1024, // a device copies this in less time than the call takes
    QUEUED_MOST  = 256 * 1024 * 1024, // most bytes in flight before the copies are awaited
};

static const struct ggml_tensor * tensor_of(const uma_gate * gate, int32_t i) {
    return i % 2 == 0 ? gate->k[i / 2] : gate->v[i / 2];
}

int64_t uma_kv_bytes(const uma_gate * gate, int32_t n) {
    int64_t bytes = 0;
    for (int32_t i = 0; i < 2 * gate->n_layer; i++) {
        bytes += (int64_t) tensor_of(gate, i)->nb[1] * n;
    }
    return bytes;
}

// A view of `size` bytes inside a cache tensor, as a plain byte vector that the backend can copy.
static struct ggml_tensor byte_view(const struct ggml_tensor * t, int64_t offset, int64_t size) {
    struct ggml_tensor view;
    memset(&view, 0, sizeof(view));
    view.type   = GGML_TYPE_I8;
    view.buffer = t->buffer;
    view.data   = (char *) t->data + offset;
    view.ne[0]  = size;
    view.ne[1]  = view.ne[2] = view.ne[3] = 1;
    view.nb[0]  = 1;
    view.nb[1]  = view.nb[2] = view.nb[3] = size;
    return view;
}

typedef struct place { // where a slice lies: in a tensor or in host bytes
    const struct ggml_tensor * tensor;
    char *  host;
    int64_t offset;
} place;

static bool is_host(const struct ggml_tensor * t) { return ggml_backend_buffer_is_host(t->buffer); }

// With a copier, a copy within its device is only queued; ggml_backend_synchronize waits for it.
static void move_bytes(place from, place to, int64_t size, struct ggml_backend * copier) {
    if (from.tensor && to.tensor) {
        if (is_host(from.tensor) && is_host(to.tensor)) {
            memcpy((char *) to.tensor->data + to.offset, (const char *) from.tensor->data + from.offset, size);
        } else {
            struct ggml_tensor a = byte_view(from.tensor, from.offset, size);
            struct ggml_tensor b = byte_view(to.tensor, to.offset, size);
            if (copier) {
                ggml_backend_tensor_copy_async(copier, copier, &a, &b);
            } else {
                ggml_backend_tensor_copy(&a, &b);
            }
        }
    } else if (from.tensor) {
        struct ggml_tensor a = byte_view(from.tensor, from.offset, size);
        ggml_backend_tensor_get(&a, to.host + to.offset, 0, size);
    } else {
        struct ggml_tensor b = byte_view(to.tensor, to.offset, size);
        ggml_backend_tensor_set(&b, from.host + from.offset, 0, size);
    }
}

// The place of position p in the i-th tensor (k0, v0, k1, v1, ...).
static place place_of(const uma_span * span, const uma_gate * shape, int32_t i, int32_t p) {
    place at = { NULL, NULL, 0 };
    if (span->gate) {
        at.tensor = tensor_of(span->gate, i);
        at.offset = ((int64_t) span->stream * span->n_cells + p) * at.tensor->nb[1];
        return at;
    }
    at.host = span->bytes;
    for (int32_t j = 0; j < i; j++) {
        at.offset += (int64_t) tensor_of(shape, j)->nb[1] * span->n_cells;
    }
    at.offset += (int64_t) tensor_of(shape, i)->nb[1] * (p - span->stream);
    return at;
}

// Moves slices from *cursor on. They are numbered through all tensors; *cursor is the next one to move.
static int32_t move_slices(const uma_span * from, const uma_span * to, int32_t p0, int32_t p1, int32_t * cursor,
    int64_t until_ns) {
    const uma_gate * shape = from->gate ? from->gate : to->gate;
    struct ggml_backend * copier = from->gate && to->gate ? to->gate->copier : NULL;
    const int32_t n_tensors = 2 * shape->n_layer;
    const int64_t slice_bytes = copier ? DEVICE_SLICE : SLICE_BYTES;
    int64_t queued = 0;
    int32_t unit = 0;
    for (int32_t i = 0; i < n_tensors; i++) {
        const int64_t row = tensor_of(shape, i)->nb[1];
        const int32_t step = row >= slice_bytes ? 1 : (int32_t) (slice_bytes / row);
        for (int32_t p = p0; p < p1; p += step, unit++) {
            if (unit < *cursor) {
                continue;
            }
            const int32_t end = p + step < p1 ? p + step : p1;
            move_bytes(place_of(from, shape, i, p), place_of(to, shape, i, p), row * (end - p), copier);
            *cursor = unit + 1;
            queued += row * (end - p);
            if (copier && queued >= QUEUED_MOST) {
                ggml_backend_synchronize(copier);
                queued = 0;
            }
            if (uma_now_ns() >= until_ns) {
                return i == n_tensors - 1 && end == p1;
            }
        }
    }
    return 1;
}

int32_t uma_kv_move(const uma_span * from, const uma_span * to, int32_t p0, int32_t p1, int32_t * cursor,
    int64_t until_ns) {
    const int32_t is_all = move_slices(from, to, p0, p1, cursor, until_ns);
    if (to->gate && to->gate->copier) {
        ggml_backend_synchronize(to->gate->copier);
    }
    return is_all;
}

void uma_kv_open_copier(uma_gate * gate) {
    ggml_backend_buffer_t buffer = gate->n_layer > 0 ? gate->k[0]->buffer : NULL;
    ggml_backend_dev_t device = buffer
        && !ggml_backend_buffer_is_host(buffer) ? ggml_backend_buft_get_device(ggml_backend_buffer_get_type(buffer))
            : NULL;
    gate->copier = device ? ggml_backend_dev_init(device, NULL) : NULL;
}

void uma_kv_release_pages(const uma_gate * gate) {
#if defined(__linux__)
    const uintptr_t page = (uintptr_t) sysconf(_SC_PAGESIZE);
    for (int32_t i = 0; i < 2 * gate->n_layer; i++) {
        const struct ggml_tensor * t = tensor_of(gate, i);
        if (!ggml_backend_buffer_is_host(t->buffer)) {
            continue;
        }
        const uintptr_t begin = ((uintptr_t) t->data + page - 1) & ~(page - 1);
        const uintptr_t end   = ((uintptr_t) t->data + ggml_nbytes(t)) & ~(page - 1);
        if (begin < end) {
            madvise((void *) begin, end - begin, MADV_DONTNEED); // anonymous memory reads as zeros again
        }
    }
#else
    (void) gate;
#endif
}
