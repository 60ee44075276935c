// Checks the products or the attention of one kernel table, or lists the tables that this processor can run:
// check_kernels mm NAME [ONE_IN] | attention NAME [ONE_IN] | --list
// With ONE_IN it checks one in so many cases, drawn from all of them.
#include "check.h"

static double values[1 << 16]; // of all f16; computed for each weight anew, they took half of the program's time

static void fill_values(void) {
    for (int h = 0; h < 1 << 15; h++) {
        const int exponent = h >> 10, fraction = h & 1023;
        values[h] = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
        values[h | 0x8000] = -values[h];
    }
}

double f16_value(uint16_t h) { return values[h]; }

uint16_t f16_bits(float f) {
    const float size = fabsf(f);
    uint32_t bits;
    memcpy(&bits, &size, 4);
    // rounded down: a normal f16, or a multiple of the smallest one
    const int below = size >= 0x1p-14f ? (int)(bits >> 13) - (112 << 10) : (int)(size * 0x1p24f);
    const double low = (double)size - values[below], high = values[below + 1] - (double)size;
    const uint16_t best = (uint16_t)(below + (high < low || (high == low && below % 2)));
    return f < 0 ? (uint16_t)(best | 0x8000) : best;
}

static const char * const NAMES[] = {
    "avx512vnni", "avx512", "avxvnni", "avx2", "neon-i8mm", "neon-dotprod", "neon", "portable" };
enum { N_NAMES = sizeof NAMES / sizeof *NAMES };

// Several tables share one attention: it is listed for the first of them.
static int is_attention_new(size_t table) {
    for (size_t i = 0; i < table; i++) {
        const struct uma_kernels * before = uma_kernels_named(NAMES[i]);
        if (before && before->attn == uma_kernels_named(NAMES[table])->attn) return 0;
    }
    return 1;
}

static int list(void) {
    for (size_t i = 0; i < N_NAMES; i++) {
        if (!uma_kernels_named(NAMES[i])) continue;
        printf("mm %s\n", NAMES[i]);
        if (is_attention_new(i)) printf("attention %s\n", NAMES[i]);
    }
    return 0;
}

int main(int argc, char ** argv) {
    fill_values();
    if (argc == 2 && strcmp(argv[1], "--list") == 0) return list();
    const struct uma_kernels * k = argc >= 3 ? uma_kernels_named(argv[2]) : NULL;
    const int one_in = argc == 4 ? atoi(argv[3]) : 1;
    if (!k || one_in < 1) {
        fprintf(stderr, "no such kernels on this processor: %s\n", argc >= 3 ? argv[2] : "");
        return 2;
    }
    struct tally t = { 0 };
    if (strcmp(argv[1], "mm") == 0) check_mm(k, one_in, &t);
    else check_attn(k, one_in, &t);
    printf("%ld cases, %ld values, %ld bad, worst error %.3f of the tolerance\n", t.n_cases, t.n_values, t.n_bad, t.worst);
    return t.n_bad == 0 && t.n_cases > 0 && t.n_values > 0 ? 0 : 1;
}
