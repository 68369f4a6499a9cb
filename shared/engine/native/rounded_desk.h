/* What a thread holds of a task of attention, and its two products: keys * queries and values *
 * weights, in matrix tiles or in vectors. */
#ifndef BATON_ROUNDED_DESK_H
#define BATON_ROUNDED_DESK_H

#include "vector_tiles.h"

#ifdef ROUNDED

#define SPAN 64 /* positions at a time */
#define STRIPS (SPAN / HIGH)
#define PAIRS (SPAN / BLOCK) /* blocks of 32 positions */
#define GROUPS 12            /* of sixteen rows: what a task may have */
#define MAX_DIM 256
#define FLOOR (-1e30f) /* below all scores */
#define RISE 8.0f
#define LOG2_E 1.44269504088896341f

typedef struct {
    uint16_t queries[GROUPS * MAX_DIM / BLOCK * TILE]; /* [group][block of dims][pair][row][2] */
    uint16_t values[PAIRS][MAX_DIM / HIGH][TILE];      /* [dim][position] */
    uint16_t weights[2][PAIRS][TILE];                  /* [pair of positions][row][2] */
    float mixed[GROUPS * MAX_DIM * LANES];             /* [group][dim][row] */
    float scores[2][SPAN][LANES];
    float peak[GROUPS][LANES], total[GROUPS][4][LANES];
    int32_t position[GROUPS][LANES];
    const uint16_t *keys[STRIPS];
    int64_t most[GROUPS]; /* the last position that a row of the group sees */
    int64_t window, dim;
#ifdef VECTOR_TILES
    float apart[FEW][MAX_DIM]; /* what `mixed` is else: [row][dim] */
    int few;                   /* rows, if there are no more than FEW of them; else 0 */
#endif
} __attribute__((aligned(64))) Desk;

INLINE uint16_t *queries_of(Desk *desk, int64_t group) {
    return desk->queries + group * desk->dim * LANES;
}
INLINE float *mixed_of(Desk *desk, int64_t group) { return desk->mixed + group * desk->dim * LANES; }

#ifdef MATRIX_TILES

#define SCORE(tile, strip)                                                   \
    _tile_loadd(5, desk->keys[strip] + block * BLOCK, (int)desk->dim * 2); \
    _tile_dpbf16ps(tile, 5, 4);

/* keys * queries of a group, in tiles 0 to 3 until they are stored. */
INLINE void begin_scores(Desk *desk, int group, int strips) {
    SETTLE();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int block = 0; block < desk->dim / BLOCK; block++) {
        _tile_loadd(4, queries_of(desk, group) + block * TILE, 64);
        SCORE(0, 0)
        if (strips > 1) { SCORE(1, 1) }
        if (strips > 2) { SCORE(2, 2) }
        if (strips > 3) { SCORE(3, 3) }
    }
    SETTLE();
}

/* Tiles 0 to 3 to four times TILE / 2 floats. */
INLINE void store_tiles(float *to) {
    SETTLE();
    _tile_stored(0, to, 64);
    _tile_stored(1, to + TILE / 2, 64);
    _tile_stored(2, to + TILE, 64);
    _tile_stored(3, to + 3 * TILE / 2, 64);
    SETTLE();
}

INLINE int few_rows(const Desk *desk) { return (void)desk, 0; }
INLINE void begin_few(Desk *desk, int64_t rows) { (void)desk, (void)rows; }
INLINE void scale_few(Desk *desk, __m512 factor) { (void)desk, (void)factor; }
INLINE void end_few(Desk *desk) { (void)desk; }

#else

/* A task of few rows, as of one token that decodes, has positions and dims in the lanes, so that
 * only its rows are multiplied: the same chains, the same bits. */
INLINE int few_rows(const Desk *desk) { return desk->few; }

static void begin_few(Desk *desk, int64_t rows) {
    desk->few = rows <= FEW ? (int)rows : 0;
    if (!desk->few) return;
    memset(desk->apart, 0, sizeof desk->apart);
    memset(desk->scores[0], 0, sizeof desk->scores[0]);
}

static void scale_few(Desk *desk, __m512 factor) {
    float by[LANES] __attribute__((aligned(64)));
    _mm512_store_ps(by, factor);
    for (int i = 0; i < desk->few; i++)
        for (int64_t d = 0; d < desk->dim; d++) desk->apart[i][d] *= by[i];
}

/* To where the rows of many are. */
static void end_few(Desk *desk) {
    for (int i = 0; i < desk->few; i++)
        for (int64_t d = 0; d < desk->dim; d++) mixed_of(desk, 0)[d * LANES + i] = desk->apart[i][d];
}

INLINE void score_few(Desk *desk, int few, int strips) {
    for (int strip = 0; strip < strips; strip++) {
        __m512 sum[FEW];
        for (int i = 0; i < few; i++) sum[i] = _mm512_setzero_ps();
        for (int block = 0; block < desk->dim / BLOCK; block++) {
            const uint16_t *keys = desk->keys[strip] + block * BLOCK;
            const uint16_t *queries = queries_of(desk, 0) + block * TILE;
            __m512i words[HIGH];
#pragma GCC unroll 16
            for (int i = 0; i < HIGH; i++) words[i] = _mm512_loadu_si512(keys + i * desk->dim);
            turn_words(words);
#pragma GCC unroll 16
            for (int pair = 0; pair < HIGH; pair++)
#pragma GCC unroll 8
                for (int i = 0; i < few; i++)
                    sum[i] = _mm512_dpbf16_ps(sum[i], (__m512bh)words[pair],
                                              pair_of(queries + pair * BLOCK + 2 * i));
        }
        put_columns(sum, few, desk->scores[0][strip * HIGH]);
    }
}

INLINE void mix_few(Desk *desk, int few, int strips, int64_t part) {
    __m512 sum[FEW];
#pragma GCC unroll 8
    for (int i = 0; i < few; i++) sum[i] = _mm512_loadu_ps(desk->apart[i] + part * HIGH);
    for (int both = 0; 2 * both < strips; both++) {
        const uint16_t *values = desk->values[both][part], *weights = desk->weights[0][both];
#pragma GCC unroll 16
        for (int pair = 0; pair < HIGH; pair++)
#pragma GCC unroll 8
            for (int i = 0; i < few; i++)
                sum[i] = _mm512_dpbf16_ps(sum[i], pairs_at(values + pair * BLOCK),
                                          pair_of(weights + pair * BLOCK + 2 * i));
    }
#pragma GCC unroll 8
    for (int i = 0; i < few; i++) _mm512_storeu_ps(desk->apart[i] + part * HIGH, sum[i]);
}

/* keys * queries of a group, straight to its scores. */
static void begin_scores(Desk *desk, int group, int strips) {
    if (desk->few == 1) score_few(desk, 1, strips);
    else if (desk->few && desk->few <= 4) score_few(desk, 4, strips);
    else if (desk->few) score_few(desk, FEW, strips);
    if (desk->few) return;
    Operand queries = {queries_of(desk, group), BLOCK, TILE};
    for (int strip = 0; strip < strips; strip++) {
        Operand keys = {desk->keys[strip], desk->dim, BLOCK};
        multiply_blocks(desk->scores[group % 2][strip * HIGH], 1, keys, queries, desk->dim / BLOCK);
    }
}

INLINE void store_tiles(const float *to) { (void)to; }

#endif

#ifdef MATRIX_TILES

#define MIX(tile, part)                               \
    _tile_loadd(5, values[part], 64);                \
    _tile_dpbf16ps(tile, 5, 4);

/* values * weights of a group onto what it has, four tiles of dims from `d` in tiles 0 to 3. */
INLINE void begin_mix(Desk *desk, int group, int strips, int64_t d) {
    const float *mixed = mixed_of(desk, group) + d * LANES;
    int more = d + 2 * HIGH < desk->dim;
    SETTLE();
    _tile_loadd(0, mixed, 64);
    _tile_loadd(1, mixed + TILE / 2, 64);
    if (more) {
        _tile_loadd(2, mixed + TILE, 64);
        _tile_loadd(3, mixed + 3 * TILE / 2, 64);
    }
    for (int pair = 0; 2 * pair < strips; pair++) {
        const uint16_t (*values)[TILE] = (const uint16_t (*)[TILE])desk->values[pair] + d / HIGH;
        _tile_loadd(4, desk->weights[group % 2][pair], 64);
        MIX(0, 0)
        MIX(1, 1)
        if (more) {
            MIX(2, 2)
            MIX(3, 3)
        }
    }
    SETTLE();
}

INLINE void end_mix(Desk *desk, int group, int64_t d) {
    float *mixed = mixed_of(desk, group) + d * LANES;
    if (d + 2 * HIGH < desk->dim) {
        store_tiles(mixed);
        return;
    }
    SETTLE();
    _tile_stored(0, mixed, 64);
    _tile_stored(1, mixed + TILE / 2, 64);
    SETTLE();
}

#else

/* values * weights of a group onto what it has, up to four tiles of dims from `d`. */
static void begin_mix(Desk *desk, int group, int strips, int64_t d) {
    Operand weights = {desk->weights[group % 2][0], BLOCK, TILE};
    for (int64_t part = d / HIGH; part < (d + SPAN) / HIGH && part * HIGH < desk->dim; part++) {
        if (desk->few == 1) mix_few(desk, 1, strips, part);
        else if (desk->few && desk->few <= 4) mix_few(desk, 4, strips, part);
        else if (desk->few) mix_few(desk, FEW, strips, part);
        if (desk->few) continue;
        Operand values = {desk->values[0][part], BLOCK, MAX_DIM / HIGH * TILE};
        float *mixed = mixed_of(desk, group) + part * HIGH * LANES;
        multiply_blocks(mixed, 0, values, weights, (strips + 1) / 2);
    }
}

INLINE void end_mix(Desk *desk, int group, int64_t d) { (void)desk, (void)group, (void)d; }

#endif

#endif
#endif
