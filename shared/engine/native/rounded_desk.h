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

#else

/* keys * queries of a group, straight to its scores. */
static void begin_scores(Desk *desk, int group, int strips) {
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
        Operand values = {desk->values[0][part], BLOCK, MAX_DIM / HIGH * TILE};
        float *mixed = mixed_of(desk, group) + part * HIGH * LANES;
        multiply_blocks(mixed, 0, values, weights, (strips + 1) / 2);
    }
}

INLINE void end_mix(Desk *desk, int group, int64_t d) { (void)desk, (void)group, (void)d; }

#endif

#endif
#endif
