// Finds the longest suffix of a text that occurred in it before, in constant time per token: a suffix automaton (Blumer
// et al., "The smallest automaton recognizing the subwords of a text", 1985), built as the text grows.
#include "speculation/uma_speculation.h"

#include <stdlib.h>
#include <string.h>

enum { NONE = -1, ROOT = 0 };

// A state stands for all substrings that end at the same positions. The longest of them has `length` tokens.
typedef struct state {
    int32_t length;
    int32_t link;  // the state of its longest suffix that ends at more positions; NONE: this is the root
    int32_t end;   // position after the latest of these that was recorded here
    int32_t edges; // its first edge; NONE: it has none
} state;

// The longest suffix of the text up to some position that occurred before.
typedef struct match {
    int32_t n;   // number of its tokens
    int32_t end; // position after its earlier occurrence
} match;

typedef struct edge {
    int32_t     from, to;
    llama_token token;
    int32_t     next; // the next edge of the same state
} edge;

struct uma_suffix {
    llama_token * text;
    match *   matches; // index: position less 1
    state *   states;
    edge *    edges;
    int32_t * table; // edges by (from, token), open addressing; NONE: free
    int32_t n_text, n_states, n_edges, n_table;
    int32_t most_text, most_matches, most_states, most_edges;
    int32_t last;       // the state of the whole text
    bool    is_broken;  // memory ran out
};

// Makes room for one more item of `size` bytes.
static bool grow(void ** items, int32_t n, int32_t * most, size_t size) {
    if (n < *most) {
        return true;
    }
    const int64_t wanted = *most ? (int64_t) *most * 2 : 256;
    if (wanted > INT32_MAX) {
        return false;
    }
    void * moved = realloc(*items, (size_t) wanted * size);
    if (!moved) {
        return false;
    }
    *items = moved;
    *most  = (int32_t) wanted;
    return true;
}

static uint32_t hash(int32_t from, llama_token token) {
    uint64_t x = ((uint64_t) (uint32_t) from << 32 | (uint32_t) token) * 0x9E3779B97F4A7C15u;
    return (uint32_t) (x >> 32);
}

// Returns the place of an edge in the table: the one that holds it, or the free one where it belongs.
static int32_t place(const uma_suffix * s, int32_t from, llama_token token) {
    int32_t i = (int32_t) (hash(from, token) & (uint32_t) (s->n_table - 1));
    while (s->table[i] != NONE && (s->edges[s->table[i]].from != from || s->edges[s->table[i]].token != token)) {
        i = (i + 1) & (s->n_table - 1);
    }
    return i;
}

static int32_t find(const uma_suffix * s, int32_t from, llama_token token) {
    return s->n_table ? s->table[place(s, from, token)] : NONE;
}

// Doubles the table. At least half of it stays free.
static bool widen(uma_suffix * s) {
    const int64_t n = s->n_table ? (int64_t) s->n_table * 2 : 1024;
    int32_t * table = n <= INT32_MAX ? malloc((size_t) n * sizeof(int32_t)) : NULL;
    if (!table) {
        return false;
    }
    free(s->table);
    s->table   = table;
    s->n_table = (int32_t) n;
    memset(table, 0xFF, (size_t) n * sizeof(int32_t));
    for (int32_t i = 0; i < s->n_edges; i++) {
        table[place(s, s->edges[i].from, s->edges[i].token)] = i;
    }
    return true;
}

static bool add_edge(uma_suffix * s, int32_t from, llama_token token, int32_t to) {
    if (s->n_edges >= s->n_table / 2 && !widen(s)) {
        return false;
    }
    if (!grow((void **) &s->edges, s->n_edges, &s->most_edges, sizeof(edge))) {
        return false;
    }
    s->edges[s->n_edges] = (edge) { from, to, token, s->states[from].edges };
    s->table[place(s, from, token)] = s->n_edges;
    s->states[from].edges = s->n_edges++;
    return true;
}

static int32_t add_state(uma_suffix * s, int32_t length, int32_t link, int32_t end) {
    if (!grow((void **) &s->states, s->n_states, &s->most_states, sizeof(state))) {
        return NONE;
    }
    s->states[s->n_states] = (state) { length, link, end, NONE };
    return s->n_states++;
}

// Moves the substrings of `original` that have at most `length` tokens into a state of their own.
static int32_t split(uma_suffix * s, int32_t original, int32_t length) {
    const int32_t part = add_state(s, length, s->states[original].link, s->states[original].end);
    if (part == NONE) {
        return NONE;
    }
    for (int32_t i = s->states[original].edges; i != NONE; i = s->edges[i].next) {
        if (!add_edge(s, part, s->edges[i].token, s->edges[i].to)) {
            return NONE;
        }
    }
    s->states[original].link = part;
    return part;
}

static bool extend(uma_suffix * s, llama_token token) {
    if (!grow((void **) &s->text, s->n_text, &s->most_text, sizeof(llama_token))
        || !grow((void **) &s->matches, s->n_text, &s->most_matches, sizeof(match))) {
        return false;
    }
    s->text[s->n_text++] = token;
    const int32_t whole = add_state(s, s->n_text, ROOT, s->n_text);
    if (whole == NONE) {
        return false;
    }
    int32_t at = s->last, known = NONE;
    while (at != NONE && (known = find(s, at, token)) == NONE) {
        if (!add_edge(s, at, token, whole)) {
            return false;
        }
        at = s->states[at].link;
    }
    int32_t link = ROOT;
    if (at != NONE) {
        const int32_t to = s->edges[known].to, length = s->states[at].length + 1;
        link = to;
        if (s->states[to].length != length) {
            link = split(s, to, length);
            if (link == NONE) {
                return false;
            }
            for (int32_t i; at != NONE && (i = find(s, at, token)) != NONE && s->edges[i].to == to;
                at = s->states[at].link) {
                s->edges[i].to = link;
            }
        }
    }
    s->states[whole].link = link;
    s->last = whole;
    s->matches[s->n_text - 1] = (match) { s->states[link].length, s->states[link].end };
    s->states[link].end = s->n_text; // this is the latest occurrence now
    return true;
}

uma_suffix * uma_suffix_new(void) {
    uma_suffix * s = calloc(1, sizeof(*s));
    if (s && add_state(s, 0, NONE, 0) == NONE) {
        free(s);
        return NULL;
    }
    return s;
}

bool uma_suffix_extend(uma_suffix * s, const llama_token * tokens, int32_t n) {
    for (int32_t i = 0; i < n && !s->is_broken; i++) {
        s->is_broken = !extend(s, tokens[i]);
    }
    return !s->is_broken;
}

int32_t uma_suffix_match(const uma_suffix * s, int32_t * n_match) {
    const match last = s->n_text && !s->is_broken ? s->matches[s->n_text - 1] : (match) { 0, 0 };
    *n_match = last.n;
    return last.end;
}

// Returns the token at a position; NONE: a separator, or the text's end.
static llama_token token_at(const uma_suffix * s, int32_t position) {
    return position < s->n_text && s->text[position] >= 0 ? s->text[position] : NONE;
}

int32_t uma_suffix_read(
    const uma_suffix * s, int32_t from, int32_t n_match, llama_token * out, uint8_t * agreement, int32_t n_most) {
    if (from <= 0 || from > s->n_text || s->is_broken) {
        return 0;
    }
    const match before = s->matches[from - 1];
    bool        is_one = before.n < n_match; // the match did not occur before this one
    int32_t     n = 0;
    for (; n < n_most && token_at(s, from + n) != NONE; n++) {
        out[n] = s->text[from + n];
        const llama_token other = is_one ? NONE : token_at(s, before.end + n);
        agreement[n] = other == NONE ? UMA_ONE_PLACE : other == out[n] ? UMA_PLACES_AGREE : UMA_PLACES_DIFFER;
        is_one = other != out[n];
    }
    return n;
}

int32_t uma_suffix_follow(const uma_suffix * s, uma_suffix_cursor * at, llama_token token) {
    if (s->is_broken) {
        at->n_match = 0;
        return 0;
    }
    // the text has grown since then: the match may now belong to a state that was split off
    while (s->states[at->state].link != NONE && s->states[s->states[at->state].link].length >= at->n_match) {
        at->state = s->states[at->state].link;
    }
    int32_t i;
    while ((i = find(s, at->state, token)) == NONE && at->state != ROOT) {
        at->state   = s->states[at->state].link;
        at->n_match = s->states[at->state].length;
    }
    if (i != NONE) {
        at->state = s->edges[i].to;
        at->n_match++;
    }
    return s->states[at->state].end;
}

int64_t uma_suffix_bytes(const uma_suffix * s) {
    return (int64_t) sizeof(*s) + s->most_text * (int64_t) sizeof(llama_token)
        + s->most_matches * (int64_t) sizeof(match) + s->most_states * (int64_t) sizeof(state)
        + s->most_edges * (int64_t) sizeof(edge) + s->n_table * (int64_t) sizeof(int32_t);
}

void uma_suffix_free(uma_suffix * s) {
    if (s) {
        free(s->text);
        free(s->matches);
        free(s->states);
        free(s->edges);
        free(s->table);
        free(s);
    }
}
