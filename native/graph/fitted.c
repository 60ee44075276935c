// Fits a graph that was laid out for its longest batch to a shorter one. Sizes that depend on the number of rows are
// linear in it, and each tensor only uses less of its memory.
#include "graph/uma_graph.h"

#include "ggml.h"

#include <stdlib.h>

typedef struct measures {
    int64_t ne[GGML_MAX_DIMS], nb[GGML_MAX_DIMS], offs;
} measures;

typedef struct part {
    struct ggml_tensor * tensor;
    measures most, step; // for the longest batch; the change for each further row
} part;

struct uma_fitting {
    int32_t n_parts;
    part    parts[];
};

static measures measure(const struct ggml_tensor * t) {
    measures m = { .offs = (int64_t) t->view_offs };
    for (int i = 0; i < GGML_MAX_DIMS; i++) {
        m.ne[i] = t->ne[i];
        m.nb[i] = (int64_t) t->nb[i];
    }
    return m;
}

// a + n * b
static measures along(const measures * a, const measures * b, int64_t n) {
    measures m = { .offs = a->offs + n * b->offs };
    for (int i = 0; i < GGML_MAX_DIMS; i++) {
        m.ne[i] = a->ne[i] + n * b->ne[i];
        m.nb[i] = a->nb[i] + n * b->nb[i];
    }
    return m;
}

static bool depends(const measures * step) {
    int64_t any = step->offs;
    for (int i = 0; i < GGML_MAX_DIMS; i++) {
        any |= step->ne[i] | step->nb[i];
    }
    return any != 0;
}

static int32_t count(struct ggml_context * context) {
    int32_t n = 0;
    for (struct ggml_tensor * t = ggml_get_first_tensor(context); t; t = ggml_get_next_tensor(context, t)) {
        n++;
    }
    return n;
}

uma_fitting * uma_fitting_new(struct ggml_context * graph, struct ggml_context * longer) {
    const int32_t n = count(graph);
    uma_fitting * f = calloc(1, sizeof(*f) + (size_t) n * sizeof(part));
    struct ggml_tensor * t = ggml_get_first_tensor(graph), * u = ggml_get_first_tensor(longer);
    for (; f && t && u && t->op == u->op; t = ggml_get_next_tensor(graph, t), u = ggml_get_next_tensor(longer, u)) {
        part * p = &f->parts[f->n_parts];
        const measures more = measure(u);
        p->tensor = t;
        p->most   = measure(t);
        p->step   = along(&more, &p->most, -1);
        f->n_parts += depends(&p->step);
    }
    if (t || u) { // the graphs differ
        free(f);
        return NULL;
    }
    return f;
}

void uma_fitting_free(uma_fitting * f) { free(f); }

void uma_fitting_fit(const uma_fitting * f, int32_t n_less) {
    for (int32_t i = 0; i < f->n_parts; i++) {
        const part * p = &f->parts[i];
        struct ggml_tensor * t = p->tensor;
        const measures m = along(&p->most, &p->step, -n_less);
        for (int d = 0; d < GGML_MAX_DIMS; d++) {
            t->ne[d] = m.ne[d];
            t->nb[d] = (size_t) m.nb[d];
        }
        t->view_offs = (size_t) m.offs;
        if (t->view_src && p->step.offs) {
            t->data = (char *) t->view_src->data + m.offs;
        }
    }
}
