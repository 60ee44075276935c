// Attention by ggml's own operation: the span of cells that a batch reads, and the mask that says which of them each
// row sees.
#include "graph/uma_graph.h"

#include "ggml-impl.h"

#include <string.h>

// ggml's CUDA kernels need the number of cells to be a multiple of 256. When the span of a decode step with few rows
// grows, the step cannot be started ahead, so its token comes half a step late (and recorded graphs are recorded
// again). Larger multiples make that rare, but read some cells that no row sees.
enum { PAGE = 64, STEP = 256, FEW_ROWS = 16, STEP_OF_FEW = 1024 };

static const uint16_t UNSEEN = 0xFC00; // -inf as f16; 0 is seen

typedef struct table {
    const int32_t * pages; // (sequences, n_pages_seq)
    int32_t n_pages_seq;
} table;

static const int32_t * pages_of(const table * t, int32_t seq_id) {
    return t->pages + (int64_t) seq_id * t->n_pages_seq;
}

void uma_mask_span(const uma_rows * rows, const int32_t * pages, int32_t n_pages_seq, int64_t n_pool, int64_t * span) {
    const table t = { pages, n_pages_seq };
    const int64_t step = rows->n <= FEW_ROWS ? STEP_OF_FEW : STEP;
    int64_t low = INT64_MAX, high = 0;
    for (int32_t i = 0; i < rows->n; i++) {
        if (i + 1 < rows->n && rows->seq_id[i + 1] == rows->seq_id[i]) {
            continue; // a later row of the sequence sees everything that this one sees
        }
        const int32_t * own = pages_of(&t, rows->seq_id[i]);
        for (int32_t j = 0; j <= rows->pos[i] / PAGE; j++) {
            low  = own[j] < low ? own[j] : low;
            high = own[j] >= high ? own[j] + 1 : high;
        }
    }
    const int64_t end = (high * PAGE + step - 1) / step * step;
    span[0] = low * PAGE / step * step;
    span[1] = (end < n_pool ? end : n_pool) - span[0];
}

void uma_mask_fit(uma_forward * f, int64_t first, int64_t n_cells) {
    uma_mask * m = f->mask;
    m->first   = first;
    m->n_cells = n_cells;
    for (int32_t i = 0; i < m->n_views; i++) {
        struct ggml_tensor * t = m->views[i];
        t->ne[1]     = n_cells;
        t->view_offs = (size_t) first * t->nb[1];
        t->data      = (char *) t->view_src->data + t->view_offs;
    }
    for (int32_t i = 0; i < 2; i++) {
        struct ggml_tensor * t = m->inputs[i];
        if (t) {
            t->ne[0] = n_cells;
            t->nb[1] = (size_t) n_cells * t->nb[0];
            t->nb[2] = t->nb[3] = t->nb[1] * (size_t) t->ne[1];
        }
    }
    f->graph->uid = 0; // a backend that recorded the graph must check it again
}

// Marks positions begin..end of a sequence as seen or unseen.
static void paint(const uma_mask * m, uint16_t * row, const int32_t * pages, int64_t begin, int64_t end,
    uint16_t value) {
    while (begin < end) {
        const int64_t next = begin / PAGE * PAGE + PAGE, stop = next < end ? next : end;
        uint16_t * cells = row + pages[begin / PAGE] * (int64_t) PAGE - m->first;
        for (int64_t pos = begin; pos < stop; pos++) {
            cells[pos % PAGE] = value;
        }
        begin = stop;
    }
}

static int64_t first_seen(int64_t pos, int32_t n_window) {
    return n_window && pos >= n_window ? pos + 1 - n_window : 0;
}

static void fill(const uma_mask * m, uint16_t * mask, int32_t n_window, const uma_rows * rows, const table * t) {
    for (int32_t i = 0; i < rows->n; i++) {
        uint16_t * row = mask + i * m->n_cells;
        const int32_t * pages = pages_of(t, rows->seq_id[i]);
        const int64_t pos = rows->pos[i], begin = first_seen(pos, n_window);
        if (i > 0 && rows->seq_id[i - 1] == rows->seq_id[i] && rows->pos[i - 1] == pos - 1) {
            memcpy(row, row - m->n_cells, sizeof(*row) * (size_t) m->n_cells);
            paint(m, row, pages, first_seen(pos - 1, n_window), begin, UNSEEN);
            paint(m, row, pages, pos, pos + 1, 0);
            continue;
        }
        for (int64_t c = 0; c < m->n_cells; c++) {
            row[c] = UNSEEN;
        }
        paint(m, row, pages, begin, pos + 1, 0);
    }
}

void uma_mask_fill(const uma_mask * m, const uma_rows * rows, const int32_t * pages, int32_t n_pages_seq) {
    const table t = { pages, n_pages_seq };
    if (m->full) {
        fill(m, m->full, 0, rows, &t);
    }
    if (m->window) {
        fill(m, m->window, m->n_window, rows, &t);
    }
}
