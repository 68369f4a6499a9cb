/* Products of quantised weights in AMX tiles, as exact as float32.
 *
 * A float is the sum of three bfloat16, its planes: 3 x 8 bits of mantissa hold its 24. A code of at
 * most 8 bits is one bfloat16. So a plane times codes is exact in float32, and only sums round:
 *
 *   found = sum over a block's 32 ins of (low + middle + high plane) * code
 *   out  += d * found, and += m * (sum of the block's ins) where the weights have that
 *
 * A row's sums go over the same blocks in the same order whatever is computed beside it, so it is
 * the same bits. After Henry et al. (2019), "Leveraging the bfloat16 Artificial Intelligence
 * Datatype For Higher-Precision Computations". */
#include "matrix_tiles.h"

#ifdef MATRIX_TILES

#include <stdlib.h>

#define SPREAD 4 /* panels side by side: a tile of sums for each */
#define DEPTH 4  /* blocks at a time: their codes stay in the first cache */
#define AHEAD 8  /* blocks from unpacking to fetching */
#define TOGETHER 256
#define PLANES 3

typedef struct {
    uint16_t *planes; /* [group][block][low, middle, high][row][32] */
    float *sums;      /* [group][block][HIGH] */
    int64_t rows, blocks;
} Split;

typedef struct {
    uint16_t codes[DEPTH][SPREAD][TILE]; /* [pair of ins][lane][2] bfloat16 */
    float d[DEPTH][SPREAD][LANES], m[DEPTH][SPREAD][LANES];
} __attribute__((aligned(64))) Chunk;

int planes_fit(const Weight *weight) {
    int64_t kind = weight->kind;
    int coded = kind == Q8_0 || kind == Q4_0 || kind == Q4_1 || kind == INT8;
    return coded && weight->ins % BLOCK == 0 && tiles_allowed();
}

/* Tiles 0 to 3: sums; 4 to 6: planes of `rows` rows; 7: codes. */
#define CODES 7

INLINE int64_t group_rows(const Split *split, int64_t group) {
    int64_t left = split->rows - group * HIGH;
    return left < HIGH ? left : HIGH;
}

INLINE uint16_t *planes_at(const Split *split, int64_t group, int64_t block) {
    int64_t rows = group_rows(split, group);
    return split->planes + (group * HIGH * split->blocks + block * rows) * PLANES * BLOCK;
}

INLINE __m512 take_plane(__m512 *rest, uint16_t *to) {
    __m256i plane = (__m256i)_mm512_cvtneps_pbh(*rest);
    __m512 value = (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(plane), 16);
    _mm256_storeu_si256((__m256i *)to, plane);
    *rest = _mm512_sub_ps(*rest, value);
    return value;
}

/* One row into its planes. */
static void split_row(const Split *split, int64_t row, const float *in) {
    int64_t group = row / HIGH, step = group_rows(split, group) * BLOCK;
    for (int64_t block = 0; block < split->blocks; block++, in += BLOCK) {
        uint16_t *to = planes_at(split, group, block) + row % HIGH * BLOCK;
        __m512 first = _mm512_loadu_ps(in), second = _mm512_loadu_ps(in + 16);
        split->sums[(group * split->blocks + block) * HIGH + row % HIGH] =
            _mm512_reduce_add_ps(_mm512_add_ps(first, second));
        for (int plane = PLANES - 1; plane >= 0; plane--) {
            take_plane(&first, to + plane * step);
            take_plane(&second, to + plane * step + 16);
        }
    }
}

/* -8 to 7 as bfloat16, twice. */
static const uint16_t NUMBERS[32] __attribute__((aligned(64))) = {
    0xC100, 0xC0E0, 0xC0C0, 0xC0A0, 0xC080, 0xC040, 0xC000, 0xBF80, 0x0000, 0x3F80, 0x4000,
    0x4040, 0x4080, 0x40A0, 0x40C0, 0x40E0, 0xC100, 0xC0E0, 0xC0C0, 0xC0A0, 0xC080, 0xC040,
    0xC000, 0xBF80, 0x0000, 0x3F80, 0x4000, 0x4040, 0x4080, 0x40A0, 0x40C0, 0x40E0};

/* Four bits in each half of a word to a pair of bfloat16; the fifth bit does not count. */
static void unpack_nibbles(const uint8_t *codes, uint16_t *to) {
    __m512i table = _mm512_load_si512(NUMBERS);
    for (int word = 0; word < 4; word++) {
        __m512i words = _mm512_loadu_si512(codes + word * 64);
#pragma GCC unroll 4
        for (int pair = 0; pair < 4; pair++, to += 32)
            _mm512_store_si512(to, _mm512_permutexvar_epi16(_mm512_srli_epi32(words, 4 * pair), table));
    }
}

static void unpack_bytes(const uint8_t *codes, uint16_t *to) {
    for (int pair = 0; pair < HIGH; pair++, codes += 2 * LANES, to += 32) {
        __m512i even = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)codes));
        __m512i odd = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(codes + LANES)));
        even = _mm512_srli_epi32((__m512i)_mm512_cvtepi32_ps(even), 16);
        odd = (__m512i)_mm512_cvtepi32_ps(odd);
        _mm512_store_si512(to, _mm512_mask_blend_epi16(0xAAAAAAAA, even, odd));
    }
}

/* Codes and scales of `count` blocks of `span` panels. */
static void unpack(const Weight *weight, int64_t panel, int span, int64_t block, int count,
                   Chunk *chunk) {
    int64_t size = block_bytes(weight->kind), blocks = weight->ins / BLOCK;
    for (int i = 0; i < count; i++)
        for (int s = 0; s < span; s++) {
            const uint8_t *from = weight->panels + ((panel + s) * blocks + block + i) * size;
            const uint16_t *stored = (const uint16_t *)from;
            int64_t next = block + i + AHEAD, far = panel + s;
            if (next >= blocks) next -= blocks, far += SPREAD; /* Of the next job. */
            const uint8_t *ahead = weight->panels + (far * blocks + next) * size;
            for (int64_t at = 0; at < size; at += 64) __builtin_prefetch(ahead + at);
            if (weight->kind == INT8) {
                store(chunk->d[i][s], load(weight->scales + (panel + s) * LANES));
                unpack_bytes(from, chunk->codes[i][s]);
                continue;
            }
            vec d = halves(stored);
            store(chunk->d[i][s], d);
            if (weight->kind == Q4_1) store(chunk->m[i][s], d * all(8) + halves(stored + LANES));
            if (weight->kind == Q8_0) unpack_bytes(from + 2 * LANES, chunk->codes[i][s]);
            else unpack_nibbles(from + (weight->kind == Q4_1 ? 4 : 2) * LANES, chunk->codes[i][s]);
        }
}

#define MULTIPLY(s)                                       \
    _tile_zero(s);                                        \
    _tile_loadd(7, chunk->codes[i][s], 64);               \
    _tile_dpbf16ps(s, 4, 7);                              \
    _tile_dpbf16ps(s, 5, 7);                              \
    _tile_dpbf16ps(s, 6, 7);                              \
    _tile_stored(s, found[i % 2][s], 64);

/* sums[row][SPREAD * LANES] of a group of rows over a chunk of blocks. A block is scaled while the
 * tiles work at the next. */
INLINE void multiply_group(const Chunk *chunk, int shifted, int span, int count,
                           const uint16_t *planes, const float *ins, int rows, float *sums) {
    float found[2][SPREAD][HIGH * LANES] __attribute__((aligned(64)));
    for (int i = 0; i <= count; i++) {
        if (i < count) {
            const uint16_t *from = planes + (int64_t)i * rows * PLANES * BLOCK;
            SETTLE();
            _tile_loadd(4, from, 64);
            _tile_loadd(5, from + rows * BLOCK, 64);
            _tile_loadd(6, from + 2 * rows * BLOCK, 64);
            MULTIPLY(0)
            if (span > 1) { MULTIPLY(1) }
            if (span > 2) { MULTIPLY(2) }
            if (span > 3) { MULTIPLY(3) }
        }
        if (i == 0) continue;
        const float *in = ins + (i - 1) * HIGH;
        for (int s = 0; s < span; s++) {
            vec d = load(chunk->d[i - 1][s]), m = load(chunk->m[i - 1][s]);
            for (int row = 0; row < rows; row++) {
                float *to = sums + row * SPREAD * LANES + s * LANES;
                vec sum = load(to) + d * load(found[(i - 1) % 2][s] + row * LANES);
                if (shifted) sum += m * all(in[row]);
                store(to, sum);
            }
        }
    }
}

static void put_rows(const Weight *weight, int64_t panel, int span, int64_t rows,
                     const float *sums, float *out, int add) {
    int64_t first = panel * LANES, count = weight->outs - first;
    if (count > span * LANES) count = span * LANES;
    for (int64_t row = 0; row < rows; row++, sums += SPREAD * LANES) {
        float *to = out + row * weight->outs + first;
        int64_t i = 0;
        for (; i + WIDTH <= count; i += WIDTH)
            store(to + i, add ? load(to + i) + load(sums + i) : load(sums + i));
        for (; i < count; i++) to[i] = add ? to[i] + sums[i] : sums[i];
    }
}

/* SPREAD panels of outs for all rows. */
static void run(const Weight *weight, const Split *split, int64_t panel, float *out, int add) {
    float sums[TOGETHER * SPREAD * LANES] __attribute__((aligned(64)));
    Chunk chunk;
    int64_t panels = (weight->outs + LANES - 1) / LANES;
    int span = panels - panel < SPREAD ? (int)(panels - panel) : SPREAD, shaped = 0;
    memset(sums, 0, split->rows * SPREAD * LANES * sizeof(float));
    for (int64_t block = 0; block < split->blocks; block += DEPTH) {
        int count = split->blocks - block < DEPTH ? (int)(split->blocks - block) : DEPTH;
        unpack(weight, panel, span, block, count, &chunk);
        for (int64_t group = 0; group * HIGH < split->rows; group++) {
            int rows = (int)group_rows(split, group);
            const uint16_t *planes = planes_at(split, group, block);
            const float *ins = split->sums + (group * split->blocks + block) * HIGH;
            float *to = sums + group * HIGH * SPREAD * LANES;
            if (shaped != rows) shape_tiles(CODES, shaped = rows);
            if (weight->kind == Q4_1) multiply_group(&chunk, 1, span, count, planes, ins, rows, to);
            else multiply_group(&chunk, 0, span, count, planes, ins, rows, to);
        }
    }
    put_rows(weight, panel, span, split->rows, sums, out, add);
}

static void strip(const Weight *weight, Split *split, const float *in, float *out, int add,
                  int threads) {
    int64_t panels = (weight->outs + LANES - 1) / LANES, jobs = (panels + SPREAD - 1) / SPREAD;
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (int64_t row = 0; row < split->rows; row++)
            split_row(split, row, in + row * weight->ins);
#pragma omp for schedule(dynamic, 1) nowait
        for (int64_t job = 0; job < jobs; job++) run(weight, split, job * SPREAD, out, add);
        _tile_release();
    }
}

void planes_linear(const Weight *weight, const float *in, float *out, int64_t rows, int add,
                   int threads) {
    static _Thread_local char *kept;
    static _Thread_local size_t size;
    int64_t blocks = weight->ins / BLOCK;
    size_t high = rows < TOGETHER ? rows : TOGETHER, groups = (high + HIGH - 1) / HIGH;
    size_t plane_bytes = high * blocks * PLANES * BLOCK * sizeof(uint16_t);
    size_t wanted = plane_bytes + groups * blocks * HIGH * sizeof(float);
    if (wanted > size) {
        free(kept);
        kept = aligned_alloc(64, wanted);
        if (kept == NULL) abort();
        size = wanted;
    }
    for (int64_t first = 0; first < rows; first += TOGETHER) {
        int64_t count = rows - first < TOGETHER ? rows - first : TOGETHER;
        Split split = {(uint16_t *)kept, (float *)(kept + plane_bytes), count, blocks};
        strip(weight, &split, in + first * weight->ins, out + first * weight->outs, add, threads);
    }
}

#else

int planes_fit(const Weight *weight) {
    (void)weight;
    return 0;
}

void planes_linear(const Weight *weight, const float *in, float *out, int64_t rows, int add,
                   int threads) {
    (void)weight, (void)in, (void)out, (void)rows, (void)add, (void)threads;
}

#endif
