// Runs llama_decode with ggml's own kernels and with ours, on one model: check_llama MODEL [N_PERPLEXITY_TOKENS]
// (a multiple of 128: each of four windows is read 32 tokens at a time)
// It prints one line per scenario: name, rms of the logits, rows; then our difference from ggml, and the difference
// between two of ggml's own ways. Each difference is an rms and a widest gap: the largest distance, in the second one's
// logits, between the tokens that the two prefer in the same row. Last come the counts of our operations and both
// perplexities.
#include "ggml-uma/uma_ggml.h"
#include "llama.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_SEQ = 4, N_CTX = 1024, MAX_BATCH = 512, ALL_OPS = (1 << UMA_GGML_N_OPS) - 1 };

static struct llama_context * ctx;
static int n_vocab;

static void quiet(enum ggml_log_level level, const char * text, void * data) {
    (void)data;
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static uint32_t rand_below(uint32_t n) {
    static uint64_t state = 88172645463325252u;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % n;
}

static void open_context(struct llama_model * model, enum ggml_type kv_type, bool is_unified) {
    struct llama_context_params p = llama_context_default_params();
    p.n_ctx = N_CTX * N_SEQ;
    p.n_batch = p.n_ubatch = MAX_BATCH;
    p.n_seq_max = N_SEQ;
    p.n_threads = p.n_threads_batch = 2;
    p.type_k = p.type_v = kv_type;
    p.kv_unified = is_unified;
    p.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    ctx = llama_init_from_model(model, p);
    if (!ctx) exit(2);
}

// Decodes n tokens of each of the sequences first..last-1 from position pos on. The logits of every token go to `out`
// if it is given.
static void decode(const llama_token * tokens, int first, int last, int pos, int n, float * out) {
    struct llama_batch b = llama_batch_init((last - first) * n, 0, 1);
    for (int s = first; s < last; s++) {
        for (int i = 0; i < n; i++, b.n_tokens++) {
            b.token[b.n_tokens] = tokens[s * N_CTX + pos + i];
            b.pos[b.n_tokens] = pos + i;
            b.n_seq_id[b.n_tokens] = 1;
            b.seq_id[b.n_tokens][0] = s;
            b.logits[b.n_tokens] = out != NULL || i == n - 1;
        }
    }
    if (llama_decode(ctx, b)) exit(3);
    for (int i = 0; out && i < b.n_tokens; i++)
        memcpy(out + (size_t)i * (size_t)n_vocab, llama_get_logits_ith(ctx, i), (size_t)n_vocab * 4);
    llama_batch_free(b);
}

static void forget(int from) {
    for (int s = 0; s < N_SEQ; s++) llama_memory_seq_rm(llama_get_memory(ctx), s, from, -1);
}

static int best(const float * row) {
    int b = 0;
    for (int i = 1; i < n_vocab; i++) b = row[i] > row[b] ? i : b;
    return b;
}

static double rms(const float * a, const float * b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        const double d = (double)a[i] - (b ? (double)b[i] : 0);
        sum += d * d;
    }
    return sqrt(sum / (double)n);
}

static double widest_gap(const float * a, const float * b, size_t rows) {
    double widest = 0;
    for (size_t r = 0; r < rows; r++, a += n_vocab, b += n_vocab)
        widest = fmax(widest, (double)(b[best(b)] - b[best(a)]));
    return widest;
}

// Computes n tokens of n_seq sequences after `depth` tokens: by ggml at once, by ggml token by token, and by us at
// once. The sequences must hold at least that many tokens.
static void scenario(const char * name, const llama_token * tokens, int depth, int n_seq, int n) {
    const size_t rows = (size_t)(n_seq * n), size = rows * (size_t)n_vocab;
    float * whole = malloc(size * 4), * steps = malloc(size * 4), * ours = malloc(size * 4);
    uma_ggml_enable(0);
    forget(depth);
    decode(tokens, 0, n_seq, depth, n, whole);
    forget(depth);
    for (int s = 0; s < n_seq; s++) {
        for (int i = 0; i < n; i++)
            decode(tokens, s, s + 1, depth + i, 1, steps + (size_t)(s * n + i) * (size_t)n_vocab);
    }
    forget(depth);
    uma_ggml_enable(ALL_OPS);
    decode(tokens, 0, n_seq, depth, n, ours);
    printf("scenario %s %g %zu %g %g %g %g\n", name, rms(whole, NULL, size), rows, rms(ours, whole, size),
        widest_gap(ours, whole, rows),
           rms(steps, whole, size), widest_gap(steps, whole, rows));
    free(whole), free(steps), free(ours);
}

static void scenarios(struct llama_model * model, const llama_token * tokens, enum ggml_type kv_type, bool is_unified) {
    // the deepest first: each reads from the beginning that the one before has left
    static const int SHAPES[][3] = { { 600, 1, 1 }, { 300, 4, 1 }, { 200, 1, 65 }, { 100, 1, 5 }, { 70, 4, 9 }, {
        0, 1, 1 } };
    open_context(model, kv_type, is_unified);
    uma_ggml_enable(0);
    for (int s = 0; s < N_SEQ; s++) {
        const int depth = SHAPES[s > 0][0];
        for (int p = 0; p < depth; p += MAX_BATCH)
            decode(tokens, s, s + 1, p, depth - p < MAX_BATCH ? depth - p : MAX_BATCH, NULL);
    }
    for (size_t i = 0; i < sizeof SHAPES / sizeof *SHAPES; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s-%s-%d-%dx%d", ggml_type_name(kv_type), is_unified ? "unified" : "streams",
            SHAPES[i][0], SHAPES[i][1], SHAPES[i][2]);
        scenario(name, tokens, SHAPES[i][0], SHAPES[i][1], SHAPES[i][2]);
    }
    llama_free(ctx);
}

// Returns the sum of exp(logit - max); the terms go to `terms` if it is given. expf: in f64 this took most of the time
// of small models.
static double exp_sum(const float * row, float max, float * terms) {
    double sum = 0;
    for (int i = 0; i < n_vocab; i++) {
        const float e = expf(row[i] - max);
        if (terms) terms[i] = e;
        sum += (double)e;
    }
    return sum;
}

// Draws a token, and overwrites the logits.
static llama_token draw(float * row) {
    double left = exp_sum(row, row[best(row)], row) * (rand_below(1 << 30) / (double)(1 << 30));
    for (int i = 0; i < n_vocab; i++) {
        left -= (double)row[i];
        if (left < 0) return i;
    }
    return n_vocab - 1;
}

static double surprise(const float * row, llama_token t) {
    const float max = row[best(row)];
    return log(exp_sum(row, max, NULL)) - (double)(row[t] - max);
}

// `text`: windows of `n_window` tokens, N_CTX apart
static double perplexity(const llama_token * text, int n_windows, int n_window, uint32_t ops) {
    enum { N_EACH = 32 };
    float * rows = malloc((size_t)(N_SEQ * N_EACH) * (size_t)n_vocab * 4);
    double sum = 0;
    int count = 0;
    uma_ggml_enable(ops);
    for (int w = 0; w < n_windows; w += N_SEQ, text += N_SEQ * N_CTX) {
        forget(0);
        for (int p = 0; p < n_window; p += N_EACH) {
            decode(text, 0, N_SEQ, p, N_EACH, rows);
            for (int i = 0; i < N_SEQ * N_EACH; i++) {
                const int at = p + i % N_EACH + 1;
                if (at == n_window) continue;
                sum += surprise(rows + (size_t)i * (size_t)n_vocab, text[i / N_EACH * N_CTX + at]);
                count++;
            }
        }
    }
    free(rows);
    return exp(sum / count);
}

// Draws the model's own text at temperature 1, in windows, as many at once as there are sequences. Its perplexity
// follows from the model's entropy, and any damage raises it.
static llama_token * own_text(int n_windows, int n_window) {
    llama_token * whole = malloc((size_t)(n_windows * N_CTX) * sizeof *whole);
    float * rows = malloc((size_t)N_SEQ * (size_t)n_vocab * 4);
    uma_ggml_enable(0);
    llama_set_n_threads(ctx, 1, 1); // many tiny graphs: a second thread would mostly wait
    for (int w = 0; w < n_windows; w += N_SEQ) {
        llama_token * text = whole + w * N_CTX;
        forget(0);
        for (int s = 0; s < N_SEQ; s++) text[s * N_CTX] = (llama_token)rand_below((uint32_t)n_vocab);
        for (int i = 0; i + 1 < n_window; i++) {
            decode(text, 0, N_SEQ, i, 1, rows);
            for (int s = 0; s < N_SEQ; s++) text[s * N_CTX + i + 1] = draw(rows + (size_t)s * (size_t)n_vocab);
        }
    }
    free(rows);
    llama_set_n_threads(ctx, 2, 2);
    return whole;
}

int main(int argc, char ** argv) {
    if (argc < 2) return 1;
    llama_log_set(quiet, NULL);
    llama_backend_init();
    printf("registered %d %s\n", uma_ggml_register(), uma_ggml_isa());
    struct llama_model_params p = llama_model_default_params();
    p.use_extra_bufts = false;
    struct llama_model * model = llama_model_load_from_file(argv[1], p);
    if (!model) return 1;
    n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    llama_token * tokens = malloc(sizeof *tokens * N_SEQ * N_CTX);
    for (int i = 0; i < N_SEQ * N_CTX; i++) tokens[i] = (llama_token)rand_below((uint32_t)n_vocab);
    scenarios(model, tokens, GGML_TYPE_F16, false);
    scenarios(model, tokens, GGML_TYPE_F16, true);
    scenarios(model, tokens, GGML_TYPE_Q8_0, false);
    printf("counts");
    for (int i = 0; i < UMA_GGML_N_OPS; i++) printf(" %llu", (unsigned long long)uma_ggml_count((enum uma_ggml_op)i));
    // windows of at most N_CTX tokens; few tokens make shorter ones, which all sequences read at once
    const int n_text = argc > 2 ? atoi(argv[2]) : 0, n_window = n_text < N_SEQ * N_CTX ? n_text / N_SEQ : N_CTX;
    if (n_window > 0) {
        const int n_windows = n_text / n_window / N_SEQ * N_SEQ;
        open_context(model, GGML_TYPE_F16, false);
        const llama_token * text = own_text(n_windows, n_window);
        printf("\nperplexity %d %.6f %.6f", n_windows * n_window, perplexity(text, n_windows, n_window, 0),
            perplexity(text, n_windows, n_window, ALL_OPS));
        llama_free(ctx);
    }
    printf("\n");
    llama_model_free(model);
    return 0;
}
