// Checks one kernel table, or lists those that this processor runs: check_kernels NAME | --list
#include "check.h"

double f16_value(uint16_t h) {
    const int exponent = h >> 10 & 31, fraction = h & 1023;
    const double magnitude = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return h & 0x8000 ? -magnitude : magnitude;
}

uint16_t f16_bits(float f) {
    uint16_t best = 0;
    double distance = INFINITY;
    int low = 0, high = 0x7bff; // positive values are ordered as their bits
    while (low < high) {
        const int middle = (low + high) / 2;
        if (f16_value((uint16_t)middle) < fabs((double)f)) low = middle + 1;
        else high = middle;
    }
    for (int h = low > 0 ? low - 1 : 0; h <= low; h++) {
        const double d = fabs(f16_value((uint16_t)h) - fabs((double)f));
        if (d < distance || (d == distance && h % 2 == 0)) best = (uint16_t)h, distance = d;
    }
    return f < 0 ? (uint16_t)(best | 0x8000) : best;
}

static int report(const char * what, const struct tally * t) {
    printf("%-10s %6ld cases %8ld values %ld bad, worst error %.3f of the tolerance\n", what, t->n_cases, t->n_values,
        t->n_bad, t->worst);
    return t->n_bad == 0 && t->n_cases > 0 && t->n_values > 0;
}

int main(int argc, char ** argv) {
    static const char * const NAMES[] = {
        "avx512vnni", "avx512", "avxvnni", "avx2", "neon-i8mm", "neon-dotprod", "neon", "portable" };
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
            if (uma_kernels_named(NAMES[i])) puts(NAMES[i]);
        }
        return 0;
    }
    const struct uma_kernels * k = argc == 2 ? uma_kernels_named(argv[1]) : NULL;
    if (!k) {
        fprintf(stderr, "no such kernels on this processor: %s\n", argc == 2 ? argv[1] : "");
        return 2;
    }
    struct tally mm = { 0 }, attn = { 0 };
    check_mm(k, &mm);
    check_attn(k, &attn);
    const int mm_is_good = report("mm", &mm), attn_is_good = report("attention", &attn);
    return mm_is_good && attn_is_good ? 0 : 1;
}
