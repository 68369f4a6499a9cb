/* out = rows * weight^T (+ out), float32, over weights that stay in memory as they are stored. */
#include "codes.h"
#include "rounded.h"

#define AHEAD 1536
#define DEPTH 192        /* ins at a time: a tile's weights as floats stay in the first cache */
#define TOGETHER 192     /* rows at a time: their part of the ins stays in the second */
#define SPAN (4 / PARTS) /* panels that one row takes together */
#define ABREAST (COLUMNS / LANES) /* panels of a tile */

/* One block as float w[32][16], `stride` floats from in to in. */
INLINE void unpack(int kind, const uint8_t *block, const float *scales, float *to, int stride) {
    vec d[PARTS], m[PARTS];
    const uint8_t *codes = scales_of(kind, block, scales, d, m);
    for (int k = 0; k < BLOCK; k += 8, codes += size_of_eight(kind), to += 8 * stride)
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++)
#pragma GCC unroll 2
            for (int part = 0; part < PARTS; part++)
                store(to + i * stride + part * WIDTH,
                      weights_at(kind, codes, i, part, d[part], m[part]));
}

static void unpack_block(const Weight *weight, int64_t panel, int64_t block, float *to,
                         int stride) {
    int64_t blocks = (weight->ins + BLOCK - 1) / BLOCK, size = block_bytes(weight->kind);
    const uint8_t *from = weight->panels + (panel * blocks + block) * size;
    const float *scales = weight->scales + panel * LANES;
    switch (weight->kind) {
    case FLOAT32: unpack(FLOAT32, from, scales, to, stride); break;
    case BFLOAT16: unpack(BFLOAT16, from, scales, to, stride); break;
    case FLOAT16: unpack(FLOAT16, from, scales, to, stride); break;
    case Q8_0: unpack(Q8_0, from, scales, to, stride); break;
    case Q4_0: unpack(Q4_0, from, scales, to, stride); break;
    case Q4_1: unpack(Q4_1, from, scales, to, stride); break;
    default: unpack(INT8, from, scales, to, stride); break;
    }
}

/* One row over `span` neighbouring panels; weights and sums stay in registers. */
INLINE void row_of(int kind, int span, const Weight *weight, int64_t panel, const float *in,
                   vec acc[SPAN][PARTS]) {
    int64_t size = block_bytes(kind), blocks = (weight->ins + BLOCK - 1) / BLOCK;
    int64_t whole = weight->ins / BLOCK;
#pragma GCC unroll 4
    for (int s = 0; s < span; s++)
        for (int part = 0; part < PARTS; part++) acc[s][part] = all(0);
    for (int64_t block = 0; block < blocks; block++) {
        const uint8_t *codes[SPAN];
        const float *from = in + block * BLOCK;
        vec d[SPAN][PARTS], m[SPAN][PARTS];
#pragma GCC unroll 4
        for (int s = 0; s < span; s++)
            codes[s] = scales_of(kind, weight->panels + ((panel + s) * blocks + block) * size,
                                 weight->scales + (panel + s) * LANES, d[s], m[s]);
        /* The processor's own prefetching stops at each 4 KiB. */
        for (int s = 0; s < span; s++)
            for (int64_t ahead = 0; ahead < size; ahead += 64)
                __builtin_prefetch(codes[s] + AHEAD + ahead);
        int count = block < whole ? BLOCK : (int)(weight->ins % BLOCK) & ~7;
        int k = 0;
        for (; k < count; k += 8)
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++)
#pragma GCC unroll 4
                for (int s = 0; s < span; s++)
#pragma GCC unroll 2
                    for (int part = 0; part < PARTS; part++) {
                        const uint8_t *at = codes[s] + k / 8 * size_of_eight(kind);
                        acc[s][part] += all(from[k + i]) *
                                        weights_at(kind, at, i, part, d[s][part], m[s][part]);
                    }
        for (; block == whole && k < weight->ins % BLOCK; k++)
            for (int s = 0; s < span; s++)
                for (int part = 0; part < PARTS; part++)
                    acc[s][part] += all(from[k]) *
                                    weights_at(kind, codes[s], k, part, d[s][part], m[s][part]);
    }
}

static void put(const Weight *weight, int64_t panel, float *out, const float *found, int add) {
    int64_t first = panel * LANES, count = weight->outs - first;
    for (int64_t lane = 0; lane < LANES && lane < count; lane++)
        out[first + lane] = add ? out[first + lane] + found[lane] : found[lane];
}

INLINE void span_of(int kind, const Weight *weight, int64_t panel, int span, const float *in,
                    float *out, int add) {
    vec acc[SPAN][PARTS];
    if (span == SPAN) {
        row_of(kind, SPAN, weight, panel, in, acc);
        for (int s = 0; s < SPAN; s++) put(weight, panel + s, out, (const float *)acc[s], add);
        return;
    }
    for (int s = 0; s < span; s++) {
        row_of(kind, 1, weight, panel + s, in, acc);
        put(weight, panel + s, out, (const float *)acc[0], add);
    }
}

static void one_row(const Weight *weight, const float *in, float *out, int add, int threads) {
    int64_t panels = (weight->outs + LANES - 1) / LANES, jobs = (panels + SPAN - 1) / SPAN;
#pragma omp parallel for schedule(dynamic, 2) num_threads(threads)
    for (int64_t job = 0; job < jobs; job++) {
        int64_t panel = SPAN * job;
        int span = panel + SPAN <= panels ? SPAN : (int)(panels - panel);
        switch (weight->kind) {
        case FLOAT32: span_of(FLOAT32, weight, panel, span, in, out, add); break;
        case BFLOAT16: span_of(BFLOAT16, weight, panel, span, in, out, add); break;
        case FLOAT16: span_of(FLOAT16, weight, panel, span, in, out, add); break;
        case Q8_0: span_of(Q8_0, weight, panel, span, in, out, add); break;
        case Q4_0: span_of(Q4_0, weight, panel, span, in, out, add); break;
        case Q4_1: span_of(Q4_1, weight, panel, span, in, out, add); break;
        default: span_of(INT8, weight, panel, span, in, out, add); break;
        }
    }
}

/* A tile's panels times `rows` rows: sums[row][COLUMNS], DEPTH ins after DEPTH ins. */
static void sum_rows(const Weight *weight, int64_t panel, int abreast, const float *in,
                     int64_t rows, float *sums) {
    float wide[DEPTH * COLUMNS] __attribute__((aligned(64)));
    const float *pieces[1] = {wide};
    int columns = abreast * LANES < COLUMNS ? WIDTH : COLUMNS, high = tile_rows(rows);
    for (int64_t from = 0; from < weight->ins; from += DEPTH) {
        int count = weight->ins - from < DEPTH ? (int)(weight->ins - from) : DEPTH;
        for (int k = 0; k < count; k += BLOCK)
            for (int s = 0; s < abreast; s++)
                unpack_block(weight, panel + s, (from + k) / BLOCK,
                             wide + k * COLUMNS + s * LANES, COLUMNS);
        for (int64_t row = 0; row < rows; row += high) {
            Product product = {sums + row * COLUMNS, in + row * weight->ins + from, pieces,
                               COLUMNS, weight->ins, COLUMNS, 1, count, count, from == 0};
            multiply_tile(rows - row < high ? (int)(rows - row) : high, columns, &product);
        }
    }
}

static void many_rows(const Weight *weight, const float *in, float *out, int64_t rows, int add,
                      int threads) {
    int64_t panels = (weight->outs + LANES - 1) / LANES, outs = weight->outs;
    int64_t wide = (panels + ABREAST - 1) / ABREAST, strips = (rows + TOGETHER - 1) / TOGETHER;
    int64_t high = (rows + strips - 1) / strips;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t job = 0; job < strips * wide; job++) {
        float sums[TOGETHER * COLUMNS] __attribute__((aligned(64)));
        int64_t panel = job % wide * ABREAST, first = job / wide * high;
        int64_t count = first + high < rows ? high : rows - first;
        int abreast = panel + ABREAST <= panels ? ABREAST : 1;
        sum_rows(weight, panel, abreast, in + first * weight->ins, count, sums);
        for (int64_t row = 0; row < count; row++)
            for (int s = 0; s < abreast; s++)
                put(weight, panel + s, out + (first + row) * outs, sums + row * COLUMNS + s * LANES, add);
    }
}

/* in [rows, ins], out [rows, outs]. `add`: to what is in `out` already. */
EXPORT void baton_linear(const Weight *weight, const float *in, float *out, int64_t rows,
                         int64_t add, int64_t threads) {
    if (weight->rounded) rounded_linear(weight, in, out, rows, (int)add, (int)threads);
    else if (planes_fit(weight)) planes_linear(weight, in, out, rows, (int)add, (int)threads);
    else if (rows == 1) one_row(weight, in, out, (int)add, (int)threads);
    else many_rows(weight, in, out, rows, (int)add, (int)threads);
}

EXPORT int64_t baton_rounds(void) { return rounded_fits(); }

/* out[i] = row tokens[i] of the weight, rounded where its products are. */
EXPORT void baton_rows(const Weight *weight, const int64_t *tokens, float *out, int64_t count,
                       int64_t threads) {
#pragma omp parallel for schedule(static) if (count > 16) num_threads(threads)
    for (int64_t i = 0; i < count; i++) {
        float wide[BLOCK * LANES];
        if (weight->rounded) {
            rounded_row(weight, tokens[i], out + i * weight->ins);
            continue;
        }
        for (int64_t k = 0; k < weight->ins; k += BLOCK) {
            unpack_block(weight, tokens[i] / LANES, k / BLOCK, wide, LANES);
            for (int64_t j = 0; j < BLOCK && k + j < weight->ins; j++)
                out[i * weight->ins + k + j] = wide[j * LANES + tokens[i] % LANES];
        }
    }
}
