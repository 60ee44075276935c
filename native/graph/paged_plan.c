// Plans attention over paged KV: which rows read which cells together, in how many tasks, and where the parts' results
// go.
//
// Cells are cut into parts at the same borders for every row (uma_part_end), and a row's parts are added up in their
// order. So a row's result has the same bits whatever else is in the batch, however the prompt was cut, and whichever
// sequences share its beginning.
#include "paged.h"

#include <stdlib.h>
#include <string.h>

enum {
    TASKS_PER_THREAD = 4,
    MIN_TASK_CELLS   = 256, // rows with fewer cells are one task: merging more would cost more than spreading saves
    MIN_SHARED_CELLS = 256, // fewer shared cells are read once per row
};

uma_paged * uma_paged_new(const uma_paged_shape * shape, int32_t n_rows_max) {
    uma_paged * p = calloc(1, sizeof(*p));
    if (!p) {
        return NULL;
    }
    p->shape      = *shape;
    p->n_rows_max = n_rows_max;
    p->group      = shape->n_head / shape->n_head_kv;
    p->rows_most  = UMA_ATTN_MAX_Q / p->group;
    p->dim        = ((size_t) shape->dim_v + 15) / 16 * 16;
    const size_t kernel = uma_pad64(uma_kernels()->attn->scratch_bytes(shape->dim_k, shape->dim_v));
    const size_t slot   =
        uma_pad64(uma_paged_queries_most(p) * sizeof(struct uma_attn_part))
            + uma_pad64(uma_paged_queries_most(p) * p->dim * sizeof(float));
    p->scratch_bytes = kernel + 2 * slot; // a part's results, and their sum
    p->begin      = calloc((size_t) n_rows_max, sizeof(*p->begin));
    p->cells      = calloc((size_t) n_rows_max, sizeof(*p->cells));
    p->first_part = calloc((size_t) n_rows_max + 1, sizeof(*p->first_part));
    p->next_part  = calloc((size_t) n_rows_max, sizeof(*p->next_part));
    p->n_missing  = calloc((size_t) n_rows_max * (size_t) shape->n_head_kv, sizeof(*p->n_missing));
    p->scratch    = aligned_alloc(64, p->scratch_bytes * (size_t) shape->n_threads);
    if (!p->begin || !p->cells || !p->first_part || !p->next_part || !p->n_missing || !p->scratch) {
        uma_paged_free(p);
        return NULL;
    }
    return p;
}

void uma_paged_free(uma_paged * p) {
    if (p) {
        free(p->begin);
        free(p->cells);
        free(p->spans);
        free(p->first_part);
        free(p->next_part);
        free(p->part_slot);
        free(p->parts);
        free(p->out);
        free(p->n_missing);
        free(p->scratch);
        free(p);
    }
}

double uma_paged_work(const uma_paged * p) { return p->work; }

static bool add_span(uma_paged * p, uma_page_span s) {
    if (p->n_spans == p->spans_capacity) {
        const int32_t capacity = p->spans_capacity ? 2 * p->spans_capacity : 64;
        uma_page_span * spans = realloc(p->spans, sizeof(*spans) * (size_t) capacity);
        if (!spans) {
            return false;
        }
        p->spans = spans;
        p->spans_capacity = capacity;
    }
    p->spans[p->n_spans++] = s;
    return true;
}

int64_t uma_part_end(int64_t cell) {
    const int64_t size = cell < 512 ? 256 : cell < 4096 ? 512 : 1024;
    return (cell / size + 1) * size;
}

// Adds cells begin..end of some rows: as one task, or as one task per part if there are more than `most` cells.
static bool add_spans(uma_paged * p, uma_page_span s, int64_t most) {
    if (s.end - s.begin <= most) {
        return add_span(p, s);
    }
    bool is_ok = true;
    for (int64_t end = s.end; s.begin < end && is_ok; s.begin = s.end) {
        s.end = uma_part_end(s.begin) < end ? uma_part_end(s.begin) : end;
        is_ok = add_span(p, s);
    }
    return is_ok;
}

static int64_t whole_pages(int64_t n_cells) { return n_cells / UMA_PAGE_CELLS; }

// Returns the first cell of the first page that `row` or a later row of its sequence sees. Rows of a sequence are in
// the order of their positions.
static int64_t first_cell(const uma_paged * p, int32_t row) { return whole_pages(p->begin[row]) * UMA_PAGE_CELLS; }

static int64_t common_pages(const int32_t * a, const int32_t * b, int64_t most) {
    int64_t n = 0;
    while (n < most && a[n] == b[n]) {
        n++;
    }
    return n;
}

typedef struct table {
    const int32_t * seq_id; // (n_rows)
    const int32_t * pages;  // (sequences, n_pages_seq)
    int32_t n_pages_seq;
} table;

static const int32_t * pages_of(const table * t, int32_t row) {
    return t->pages + (size_t) t->seq_id[row] * (size_t) t->n_pages_seq;
}

// Returns how many rows from `row` on belong to one sequence.
static int32_t run_of(const uma_paged * p, const table * t, int32_t row) {
    int32_t n = 1;
    while (row + n < p->n_rows && t->seq_id[row + n] == t->seq_id[row]) {
        n++;
    }
    return n;
}

// Returns the last border between parts that lies within the first n_pages pages.
static int64_t last_border(int64_t n_pages) {
    int64_t border = 0;
    while (uma_part_end(border) <= n_pages * UMA_PAGE_CELLS) {
        border = uma_part_end(border);
    }
    return border;
}

// Returns how many single rows from `row` on read their common first cells together. Another row joins only if it saves
// more reads than are lost because the common beginning is shorter.
static int32_t sharers_of(const uma_paged * p, const table * t, int32_t row, int64_t * n_shared) {
    int32_t n = 1;
    *n_shared = last_border(whole_pages(p->cells[row]));
    while (n < p->rows_most && row + n < p->n_rows && p->begin[row + n] == 0 && run_of(p, t, row + n) == 1) {
        const int64_t own = whole_pages(p->cells[row + n]), most = *n_shared / UMA_PAGE_CELLS;
        const int64_t common =
            last_border(common_pages(pages_of(t, row), pages_of(t, row + n), own < most ? own : most));
        if (common < MIN_SHARED_CELLS || common * n < *n_shared * (n - 1)) {
            break;
        }
        *n_shared = common;
        n++;
    }
    return n;
}

// A row's shared cells and its own cells are in different spans, so each span must be a single part.
static bool plan_shared(uma_paged * p, const table * t, int32_t row, int32_t n, int64_t shared) {
    bool is_ok = add_spans(p, (uma_page_span) { row, n, 0, shared, pages_of(t, row), 0 }, 0);
    for (int32_t i = row; i < row + n && is_ok; i++) {
        if (p->cells[i] > shared) {
            is_ok = add_spans(p, (uma_page_span) { i, 1, shared, p->cells[i], pages_of(t, i), 0 }, 0);
        }
    }
    return is_ok;
}

static bool plan_run(uma_paged * p, const table * t, int32_t row, int32_t n, int64_t most) {
    bool is_ok = true;
    for (int32_t i = row; i < row + n && is_ok; i += p->rows_most) {
        const int32_t rows = row + n - i < p->rows_most ? row + n - i : p->rows_most;
        is_ok = add_spans(p, (uma_page_span) { i, rows, first_cell(p, i), p->cells[i + rows - 1], pages_of(t, i), 0 },
            most);
    }
    return is_ok;
}

// Returns the number of cells per task that gives every thread a few tasks. It decides which thread computes a part,
// never the part's borders.
static int64_t task_cells(const uma_paged * p, const table * t) {
    int64_t n_cells = 0;
    for (int32_t row = 0; row < p->n_rows;) {
        const int32_t n = run_of(p, t, row);
        for (int32_t i = row; i < row + n; i += p->rows_most) {
            const int32_t last = i + p->rows_most < row + n ? i + p->rows_most - 1 : row + n - 1;
            n_cells += p->cells[last] - first_cell(p, i);
        }
        row += n;
    }
    const int64_t wanted = p->shape.n_threads == 1 ? 1 : (int64_t) p->shape.n_threads * TASKS_PER_THREAD;
    const int64_t most = n_cells * p->shape.n_head_kv / wanted;
    return p->shape.n_threads == 1 ? INT32_MAX : most > MIN_TASK_CELLS ? most : MIN_TASK_CELLS;
}

static bool reserve(void ** block, size_t bytes) {
    void * bigger = aligned_alloc(64, uma_pad64(bytes));
    if (bigger) {
        free(*block);
        *block = bigger;
    }
    return bigger != NULL;
}

// Chooses the slots for the parts of each row, and reserves memory for them.
static bool lay_out_slots(uma_paged * p) {
    int32_t * first = p->first_part;
    memset(first, 0, sizeof(*first) * ((size_t) p->n_rows + 1));
    int64_t n_parts = 0;
    for (int32_t i = 0; i < p->n_spans; i++) {
        for (int32_t r = 0; r < p->spans[i].n_rows; r++, n_parts++) {
            first[p->spans[i].first_row + r + 1]++;
        }
    }
    p->n_slots = 0;
    for (int32_t i = 0; i < p->n_spans; i++) {
        uma_page_span * s = &p->spans[i];
        bool is_alone = true;
        for (int32_t r = 0; r < s->n_rows; r++) {
            is_alone = is_alone && first[s->first_row + r + 1] == 1;
        }
        s->slot = is_alone ? -1 : p->n_slots;
        p->n_slots += is_alone ? 0 : s->n_rows;
    }
    if (n_parts > p->parts_capacity) {
        if (!reserve((void **) &p->part_slot, sizeof(*p->part_slot) * (size_t) n_parts)) {
            return false;
        }
        p->parts_capacity = n_parts;
    }
    if (p->n_slots > p->slots_capacity) {
        const size_t n = (size_t) p->n_slots * (size_t) p->shape.n_head;
        if (!reserve((void **) &p->parts, n * sizeof(*p->parts))
            || !reserve((void **) &p->out, n * p->dim * sizeof(float))) {
            return false;
        }
        p->slots_capacity = p->n_slots;
    }
    return true;
}

static void list_parts(uma_paged * p) {
    int32_t * first = p->first_part;
    for (int32_t r = 0; r < p->n_rows; r++) {
        for (int32_t h = 0; h < p->shape.n_head_kv; h++) {
            atomic_store_explicit(&p->n_missing[r * p->shape.n_head_kv + h], first[r + 1], memory_order_relaxed);
        }
        first[r + 1] += first[r];
        p->next_part[r] = first[r];
    }
    for (int32_t i = 0; i < p->n_spans; i++) {
        const uma_page_span * s = &p->spans[i];
        for (int32_t r = 0; r < s->n_rows; r++) {
            p->part_slot[p->next_part[s->first_row + r]++] = s->slot < 0 ? -1 : s->slot + r;
        }
    }
}

bool uma_paged_plan(uma_paged * p, const uma_rows * rows, const int32_t * pages, int32_t n_pages_seq) {
    const table t = { rows->seq_id, pages, n_pages_seq };
    if (rows->n > p->n_rows_max) {
        return false;
    }
    p->n_rows  = rows->n;
    p->n_spans = 0;
    p->work    = 0;
    for (int32_t i = 0; i < rows->n; i++) {
        p->cells[i] = (int64_t) rows->pos[i] + 1;
        p->begin[i] = p->shape.window && p->cells[i] > p->shape.window ? p->cells[i] - p->shape.window : 0;
        p->work += (double) (p->cells[i] - p->begin[i]) * p->shape.n_head * (p->shape.dim_k + p->shape.dim_v);
    }
    const int64_t most = task_cells(p, &t);
    bool is_ok = true;
    for (int32_t row = 0; row < p->n_rows && is_ok;) {
        int32_t n = run_of(p, &t, row);
        int64_t n_shared = 0;
        const int32_t n_sharers = n == 1 && p->begin[row] == 0 ? sharers_of(p, &t, row, &n_shared) : 1;
        if (n_sharers > 1) {
            n     = n_sharers;
            is_ok = plan_shared(p, &t, row, n, n_shared);
        } else {
            is_ok = plan_run(p, &t, row, n, most);
        }
        row += n;
    }
    if (!is_ok || !lay_out_slots(p)) {
        return false;
    }
    list_parts(p);
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    return true;
}
