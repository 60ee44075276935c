// Computes a graph in pieces. Nothing stays on a stack between two pieces, so other graphs may be computed in between.
#include "pieces.h"
#include "graph/custom.h"
#include "graph/uma_graph.h"

#include "ggml-backend.h"
#include "ggml-impl.h"

#include <stdlib.h>
#include <string.h>

struct uma_slices {
    const volatile int32_t * interrupt; // nonzero: leave after the piece
    uma_forward * forward;
    int32_t       n, n_nodes;      // tokens of the chunk; nodes to compute
    int32_t       node;            // the first node that is not computed
    uma_pieces    pieces;
};

uma_slices * uma_slices_new(const volatile int32_t * interrupt) {
    uma_slices * s = calloc(1, sizeof(*s));
    if (s) {
        s->interrupt = interrupt;
        uma_pieces_init(&s->pieces);
    }
    return s;
}

void uma_slices_free(uma_slices * s) { free(s); }

// K and V are written into memory that no node computes. (Masking of expert groups writes rows too, but into a node's
// result.)
static bool writes_kv(const struct ggml_tensor * t) {
    return t->op == GGML_OP_SET_ROWS && t->view_src->op == GGML_OP_NONE;
}

static bool is_recurrent(const struct ggml_tensor * t) { return t->op == GGML_OP_CUSTOM && uma_recurrent_work(t) >= 0; }

// Returns the number of nodes up to the last that writes K, V or a state. Without logits no more are needed.
static int32_t n_writing(const struct ggml_cgraph * graph) {
    int32_t n = graph->n_nodes;
    while (n > 0 && !writes_kv(graph->nodes[n - 1]) && !is_recurrent(graph->nodes[n - 1])) {
        n--;
    }
    return n;
}

// Returns the multiply-adds of an attention node (fewer in layers with a window) or a recurrence, else 0.
static double attention_work(const struct ggml_tensor * t) {
    if (t->op != GGML_OP_CUSTOM) {
        return 0;
    }
    if (is_recurrent(t)) {
        return uma_recurrent_work(t);
    }
    return uma_paged_work(uma_custom_of(t).userdata);
}

void uma_slices_start(uma_slices * s, uma_forward * f, int32_t n, bool has_output) {
    s->forward = f;
    s->n       = n;
    s->n_nodes = has_output ? f->graph->n_nodes : n_writing(f->graph);
    s->node    = 0;
    uma_pieces_begin(&s->pieces, n);
    for (int32_t i = 0; i < s->n_nodes; i++) {
        uma_pieces_count(&s->pieces, f->graph->nodes[i], attention_work(f->graph->nodes[i]));
    }
    s->pieces.total_ns = uma_pieces_planned_ns(&s->pieces);
    uma_pieces_drop(&s->pieces);
}

// Returns the node after the piece that begins at `s->node`. A piece has as many nodes as are predicted to fit, at
// least one.
static int32_t piece_end(uma_slices * s, int64_t limit_ns) {
    const struct ggml_cgraph * graph = s->forward->graph;
    int32_t i = s->node;
    do {
        uma_pieces_count(&s->pieces, graph->nodes[i], attention_work(graph->nodes[i]));
        i++;
    } while (i < s->n_nodes && uma_pieces_fits(&s->pieces, graph->nodes[i], attention_work(graph->nodes[i]), limit_ns));
    return i;
}

static enum ggml_status compute(uma_slices * s, int32_t end) {
    struct ggml_cgraph view = *s->forward->graph; // its nodes, leaves and use counts still belong to the graph
    view.nodes  += s->node;
    view.n_nodes = end - s->node;
    view.uid     = 0;
    return ggml_backend_graph_compute(s->forward->backend, &view);
}

void uma_slices_run(uma_slices * s, int64_t until_ns, int64_t quantum_ns, int32_t min_pieces, uma_run * out) {
    const int64_t t0 = uma_now_ns();
    int64_t t = t0;
    memset(out, 0, sizeof(*out));
    while (s->node < s->n_nodes && out->rc == 0) {
        const bool may_leave = out->n_pieces > 0 && out->n_pieces >= min_pieces;
        const int64_t left = until_ns - t;
        if (may_leave && *s->interrupt != 0) {
            break;
        }
        const int32_t end = piece_end(s, left > 0 && left < quantum_ns ? left : quantum_ns);
        if (may_leave && (int64_t) uma_pieces_planned_ns(&s->pieces) > left) {
            uma_pieces_drop(&s->pieces);
            break;
        }
        out->rc = compute(s, end);
        s->node = end;
        const int64_t now = uma_now_ns();
        uma_pieces_end(&s->pieces, now - t);
        out->n_pieces++;
        out->longest_ns = now - t > out->longest_ns ? now - t : out->longest_ns;
        t = now;
    }
    out->is_done = out->rc != 0 || s->node >= s->n_nodes;
    if (out->is_done) {
        if (out->rc == 0 && s->n_nodes == s->forward->graph->n_nodes) {
            uma_forward_fetch(s->forward);
        }
        uma_pieces_finish(&s->pieces, out->rc == 0 ? s->n : 0);
    }
    out->elapsed_ns = uma_now_ns() - t0;
    out->fraction   = out->is_done ? 1.0 : uma_pieces_fraction(&s->pieces);
}
