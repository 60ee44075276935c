// Unpacks a panel: a chunk of the columns of V_LANES weight rows, transposed so that one vector lane is one weight row.
//
// q: [columns / 4][lane][4] bytes; scale (and min): [columns / sub][lane] f32. Every quantised format is unpacked to
// this form, so one product loop serves all. f16, bf16 and f32 weights are not unpacked: see mm_direct.h.
#ifndef UMA_MM_PANEL_H
#define UMA_MM_PANEL_H

struct panel {
    const uint8_t * q; // the weights that are multiplied: `unpacked`, or repacked weights in place
    vi table;          // for 4-bit formats with a table: the values that the 16 codes stand for
    uint8_t * unpacked;
    float * scale;
    float * min;
    const uint8_t * scales; // of repacked weights whose products are summed by block, as they are stored
    uintptr_t ahead; // the address that is read one panel later: everything before it was prefetched
    uintptr_t until; // the end of the bytes to prefetch now
    size_t lead;     // distance from `ahead` back to the bytes that are read soon; 0: not known
    int is_fetching; // the product prefetches, because no unpacking read the weights: ...
    int fetch;       // ... this many bytes per sub-block
    int is_sparse;   // one or two rows of bytes prefetch one line in four; the hardware's prefetcher brings the others
};

#ifdef V_FETCHES_ONCE
enum { V_FETCHES_TWICE = 0 };
#else
enum { V_FETCHES_TWICE = 1 };
#endif

// Prefetches one line. Reading 16 rows side by side defeats the hardware's prefetchers, but the panel after this one is
// one run of bytes. Lines come from memory into the second-level cache. In the first-level cache a panel would drive
// out the unpacked one before it is used (2.2 times slower with a first-level cache of 32 KiB), and the few requests
// that a first-level cache keeps open would wait for memory. Bytes that are read soon come from the second level into
// the first. Products of eight rows by repacked Q8_0 then take 1.07 of one row's time (1.19 without the second step,
// 1.20 if lines come from memory into the first level at once). With AVX2 the second step costs more than it brings.
// (Zen 3, 2 cores that each read 200 MiB of weights at once, measured alternately: without it, products of 1, 2, 4 and
// 8 rows take 0.97, 0.90, 0.95 and 0.99 of the time by Q8_0, and 0.98, 0.96, 0.96 and 0.96 by Q4_K.)
static inline void fetch_line(const struct panel * p, uintptr_t at) {
    __builtin_prefetch((const void *)at, 0, 2);
    if (V_FETCHES_TWICE && p->lead) __builtin_prefetch((const void *)(at - p->lead), 0, 3);
}

static inline void fetch_rest(struct panel * p) {
    const uintptr_t end = p->until;
    for (uintptr_t at = p->ahead; at < end; at += 64) fetch_line(p, at);
    p->ahead = end;
}

static inline void fetch_ahead(struct panel * p, int bytes) {
    p->until = p->ahead + (uintptr_t)bytes;
    fetch_rest(p);
}

#ifdef V_HAS_SPARSE_FETCH
enum { V_FETCHES_SPARSELY = 1 };
#else
enum { V_FETCHES_SPARSELY = 0 };
#endif

// Prefetches one line in four, for one or two rows of bytes, with AVX-512 VNNI on AMD processors. If next to nothing is
// computed, the second-level cache's own prefetcher runs far enough ahead once it has been started, and each of our
// prefetches takes one of the few misses that the first-level cache can have open. (Zen 4, 2 cores, weights in memory,
// measured alternately: one row by Q8_0 of 896, 2,048, 4,096, 4,864 and 14,336 columns takes 0.89, 0.98, 0.96, 0.98 and
// 0.88 of the time while others use the memory too; with 896 and 4,864 columns it takes 0.76 and 0.87 while they do
// not. Three rows, fewer bits and AVX2 would be slower. On a Xeon a step of one or two rows would take 1.22 of the
// time.)
static inline void fetch_sparsely(struct panel * p, int bytes) {
    const uintptr_t end = p->ahead + (uintptr_t)bytes;
    for (uintptr_t at = (p->ahead + 255) & ~(uintptr_t)255; at < end; at += 256)
        __builtin_prefetch((const void *)at, 0, 2);
    p->ahead = end;
}

// Unpacks groups k and k + 4 from one vector of repacked 4-bit weights.
V_INLINE void nibbles(const uint8_t * q, vi * low, vi * high) {
    const vi v = vi_load(q), nibble = vi_set1(0x0f0f0f0f);
    *low = vi_and(v, nibble);
    *high = vi_and(vi_srl(v, 4), nibble);
}

// The fifth bits of groups k and k + 4 as bit 4, for k = 0, 1, 2, 3 in turn.
struct fifth_bits {
    vi low, high;
};

V_INLINE struct fifth_bits fifth_bits_at(const uint8_t * q) {
    const vi bits = vi_load(q);
    return (struct fifth_bits){ vi_sll(bits, 4), bits };
}

V_INLINE void add_fifth(struct fifth_bits * f, vi * low, vi * high) {
    const vi fifth = vi_set1(0x10101010);
    *low = vi_or(*low, vi_and(f->low, fifth));
    *high = vi_or(*high, vi_and(f->high, fifth));
    f->low = vi_srl(f->low, 1);
    f->high = vi_srl(f->high, 1);
}

// Unpacks the four groups of 16 columns of 6-bit weights.
V_INLINE void six_bits(const uint8_t * q, vi out[4]) {
    const vi nibble = vi_set1(0x0f0f0f0f), pair = vi_set1(0x30303030);
    const vi a = vi_load(q), b = vi_load(q + V_LANES * 4), high = vi_load(q + V_LANES * 8);
    out[0] = vi_or(vi_and(a, nibble), vi_and(vi_sll(high, 4), pair));
    out[1] = vi_or(vi_and(b, nibble), vi_and(vi_sll(high, 2), pair));
    out[2] = vi_or(vi_and(vi_srl(a, 4), nibble), vi_and(high, pair));
    out[3] = vi_or(vi_and(vi_srl(b, 4), nibble), vi_and(vi_srl(high, 2), pair));
}

static inline void put4(struct panel * p, int64_t group, vi v) { vi_store(p->unpacked + group * V_LANES * 4, v); }

static inline void unpack_q8_0(struct panel * p, const uint8_t * w, size_t stride, int64_t n) {
    for (int64_t b = 0; b < n / 32; b++, w += Q8_0_BYTES) {
        vi v[4];
        fetch_ahead(p, V_LANES * Q8_0_BYTES);
        vi_rows16(v, w + Q8_0_QS, stride);
        for (int j = 0; j < 4; j++) put4(p, b * 8 + j, vi_bias_s8(v[j]));
        vi_rows16(v, w + Q8_0_QS + 16, stride);
        for (int j = 0; j < 4; j++) put4(p, b * 8 + 4 + j, vi_bias_s8(v[j]));
        vf_store(p->scale + b * V_LANES, vf_rows_f16(w, stride));
    }
}

static inline void unpack_q4_0(struct panel * p, const uint8_t * w, size_t stride, int64_t n) {
    const vi nibble = vi_set1(0x0f0f0f0f);
    for (int64_t b = 0; b < n / 32; b++, w += Q4_0_BYTES) {
        vi v[4];
        fetch_ahead(p, V_LANES * Q4_0_BYTES);
        vi_rows16(v, w + Q4_0_QS, stride);
        for (int j = 0; j < 4; j++) {
            put4(p, b * 8 + j, vi_and(v[j], nibble));
            put4(p, b * 8 + 4 + j, vi_and(vi_srl(v[j], 4), nibble));
        }
        vf_store(p->scale + b * V_LANES, vf_rows_f16(w, stride));
    }
}

static inline void put_scaled(float * out, int64_t at, vi six_bits, vf d) {
    vf_store(out + at * V_LANES, vf_mul(d, vf_from_vi(six_bits)));
}

// The 12 bytes are three words a, b and c. For j < 4, scale j is 6 bits of byte j of a, and min j is 6 bits of byte j
// of b. The other scales and mins have 4 bits in c and 2 bits in a or b.
static inline void unpack_q4_k_scales(struct panel * p, int64_t at, const uint8_t * w, size_t stride) {
    const vi a = vi_rows4(w + Q4_K_SCALES, stride), b = vi_rows4(w + Q4_K_SCALES + 4, stride),
        c = vi_rows4(w + Q4_K_SCALES + 8, stride);
    const vf d = vf_rows_f16(w, stride), dmin = vf_rows_f16(w + Q4_K_DMIN, stride);
    const vi six = vi_set1(0x3f), four = vi_set1(0x0f), two = vi_set1(0x30);
#define SUB(j)                                                                                                         \
    put_scaled(p->scale, at + j, vi_and(vi_srl(a, 8 * j), six), d);                                                    \
    put_scaled(p->min, at + j, vi_and(vi_srl(b, 8 * j), six), dmin);                                                   \
    put_scaled(p->scale, at + 4 + j, vi_or(vi_and(vi_srl(c, 8 * j), four), vi_and(vi_srl(vi_srl(a, 8 * j), 2), two)),  \
        d);                                                                                                            \
    put_scaled(p->min, at + 4 + j,                                                                                     \
        vi_or(vi_and(vi_srl(vi_srl(c, 8 * j), 4), four), vi_and(vi_srl(vi_srl(b, 8 * j), 2), two)), dmin)
    SUB(0);
    SUB(1);
    SUB(2);
    SUB(3);
#undef SUB
}

static inline void unpack_q4_k(struct panel * p, const uint8_t * w, size_t stride, int64_t n) {
    const vi nibble = vi_set1(0x0f0f0f0f);
    for (int64_t b = 0; b < n / 256; b++, w += Q4_K_BYTES) {
        unpack_q4_k_scales(p, b * 8, w, stride);
        for (int s = 0; s < 8; s++) { // 16 bytes: half of sub-block 2 * (s / 2) (low), half of the next (high)
            vi v[4];
            fetch_ahead(p, V_LANES * Q4_K_BYTES / 8);
            vi_rows16(v, w + Q4_K_QS + 16 * s, stride);
            const int64_t at = b * 64 + (s / 2) * 16 + (s % 2) * 4;
            for (int j = 0; j < 4; j++) {
                put4(p, at + j, vi_and(v[j], nibble));
                put4(p, at + 8 + j, vi_and(vi_srl(v[j], 4), nibble));
            }
        }
    }
}

static inline void unpack_q6_k_scales(struct panel * p, int64_t at, const uint8_t * w, size_t stride) {
    const vf d = vf_rows_f16(w + Q6_K_D, stride);
    for (int j = 0; j < 4; j++) {
        const vi s = vi_rows4(w + Q6_K_SCALES + 4 * j, stride);
        put_scaled(p->scale, at + 4 * j, vi_sra(vi_sll(s, 24), 24), d);
        put_scaled(p->scale, at + 4 * j + 1, vi_sra(vi_sll(s, 16), 24), d);
        put_scaled(p->scale, at + 4 * j + 2, vi_sra(vi_sll(s, 8), 24), d);
        put_scaled(p->scale, at + 4 * j + 3, vi_sra(s, 24), d);
    }
}

// Half h of a block: 64 bytes of low nibbles; 32 bytes of high pairs, two bits for each of its four runs of 32 columns.
static inline void unpack_q6_k(struct panel * p, const uint8_t * w, size_t stride, int64_t n) {
    const vi nibble = vi_set1(0x0f0f0f0f), pair = vi_set1(0x30303030);
    for (int64_t b = 0; b < n / 256; b++, w += Q6_K_BYTES) {
        unpack_q6_k_scales(p, b * 16, w, stride);
        for (int s = 0; s < 4; s++) { // half h = s / 2; columns 16 * (s % 2).. of each run
            vi lo[4], hi[4], qh[4];
            fetch_ahead(p, V_LANES * Q6_K_BYTES / 4);
            vi_rows16(lo, w + 64 * (s / 2) + 16 * (s % 2), stride);
            vi_rows16(hi, w + 64 * (s / 2) + 32 + 16 * (s % 2), stride);
            vi_rows16(qh, w + Q6_K_QH + 32 * (s / 2) + 16 * (s % 2), stride);
            const int64_t at = b * 64 + (s / 2) * 32 + (s % 2) * 4;
            for (int j = 0; j < 4; j++) {
                put4(p, at + j, vi_or(vi_and(lo[j], nibble), vi_and(vi_sll(qh[j], 4), pair)));
                put4(p, at + 8 + j, vi_or(vi_and(hi[j], nibble), vi_and(vi_sll(qh[j], 2), pair)));
                put4(p, at + 16 + j, vi_or(vi_and(vi_srl(lo[j], 4), nibble), vi_and(qh[j], pair)));
                put4(p, at + 24 + j, vi_or(vi_and(vi_srl(hi[j], 4), nibble), vi_and(vi_srl(qh[j], 2), pair)));
            }
        }
    }
}

static inline void unpack(enum uma_type type, struct panel * p, const uint8_t * w, size_t stride, int64_t n) {
    switch (type) {
        case UMA_Q8_0: unpack_q8_0(p, w, stride, n); break;
        case UMA_Q4_0: unpack_q4_0(p, w, stride, n); break;
        case UMA_Q4_K: unpack_q4_k(p, w, stride, n); break;
        default: unpack_q6_k(p, w, stride, n); break;
    }
}

#endif
