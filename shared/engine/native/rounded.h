/* The engine's bfloat16 setting on processors that multiply bfloat16: rows and weights are rounded to
 * bfloat16 once, multiplied once, and summed in float32.
 *
 * Rows lie on their side: a vector holds one column of sixteen rows, so that nothing between the
 * products sums across lanes, and products take and give them as they lie.
 *
 *   Turned  [group of 16 rows][column][row]                 float32
 *   Rows    [group][block of 32][pair of columns][row][2]   bfloat16, a tile each block
 *
 *   out [16 outs][16 rows] += weights [16 outs][32 ins] * rows [16 pairs of ins][16 rows][2]
 *
 * What a row gives does not depend on the rows beside it: its sums go over the same blocks in the
 * same order in every tile, and nothing is rounded for company's sake. Rows that fill up the last
 * group hold zeros or what was left there; nobody reads what they give. */
#ifndef BATON_ROUNDED_H
#define BATON_ROUNDED_H

#include "layers.h"
#include "matrix_tiles.h"

#ifdef ROUNDED

typedef struct {
    uint16_t *cells;
    int64_t groups, blocks, rows;
} Rows;

typedef struct {
    float *cells;
    int64_t groups, columns; /* a multiple of 16 */
} Turned;

#define STRIP 16 /* groups of rows that stay in the second cache with all that is made of them */

INLINE int64_t groups_of(int64_t rows) { return (rows + HIGH - 1) / HIGH; }
INLINE int64_t blocks_of(int64_t columns) { return (columns + BLOCK - 1) / BLOCK; }
INLINE uint16_t *block_at(const Rows *rows, int64_t group, int64_t block) {
    return rows->cells + (group * rows->blocks + block) * TILE;
}
INLINE float *column_at(const Turned *turned, int64_t group, int64_t column) {
    return turned->cells + (group * turned->columns + column) * LANES;
}

/* How many of a group's rows anybody reads. */
INLINE int64_t rows_in(const Rows *rows, int64_t group) {
    int64_t left = rows->rows - group * HIGH;
    return left < HIGH ? left : HIGH;
}

/* `count` groups from the given one. */
INLINE Rows rows_from(const Rows *rows, int64_t group, int64_t count) {
    int64_t left = rows->rows - group * HIGH;
    return (Rows){block_at(rows, group, 0), count, rows->blocks,
                  left < count * HIGH ? left : count * HIGH};
}
INLINE Turned turned_from(const Turned *turned, int64_t group, int64_t count) {
    return (Turned){column_at(turned, group, 0), count, turned->columns};
}

/* Two vectors as bfloat16, one after the other; to nearest, ties to even. */
INLINE __m512i rounded(__m512 first, __m512 second) {
    return (__m512i)_mm512_cvtne2ps_pbh(second, first);
}

/* Two vectors as pairs: [lane][first, second]. */
INLINE __m512i paired(__m512 first, __m512 second) {
    const __m512i order = (__m512i)(short __attribute__((vector_size(64)))){
        0, 16, 1, 17, 2, 18, 3, 19, 4,  20, 5,  21, 6,  22, 7,  23,
        8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    return _mm512_permutexvar_epi16(order, rounded(first, second));
}

/* 2^x to about 3e-6 of it, exactly 1 for 0 and 0 for -infinity; NaN for NaN. */
INLINE __m512 two_to_the(__m512 x) {
    __m512 rest = _mm512_reduce_ps(x, 1); /* Above the next lower whole number. */
    __m512 sum = _mm512_set1_ps(1.34265635e-2f);
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(5.22426681e-2f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(2.41280115e-1f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(6.93044856e-1f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(sum, x);
}

/* Sixteen rows of sixteen words turned round. */
INLINE void turn_words(__m512i r[16]) {
    __m512i s[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        s[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        s[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(s[i], s[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(s[i], s[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(s[i + 1], s[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(s[i + 1], s[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        s[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        s[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        s[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        s[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(s[i], s[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(s[i], s[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_i32x4(s[i + 4], s[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_i32x4(s[i + 4], s[i + 12], 0xdd);
    }
}

/* Memory of the calling thread that stays until a call wants more; its pieces, 64 bytes aligned. */
char *rounded_room(int64_t bytes);
INLINE int64_t rows_bytes(int64_t rows, int64_t columns) {
    return groups_of(rows) * blocks_of(columns) * TILE * 2;
}
INLINE int64_t turned_bytes(int64_t rows, int64_t columns) {
    return groups_of(rows) * HIGH * ((columns + LANES - 1) / LANES * LANES) * 4;
}
Rows take_rows(char **room, int64_t rows, int64_t columns);
Turned take_turned(char **room, int64_t rows, int64_t columns);

/* The team's share of each: all threads of a parallel region call them, and leave together. The
 * region's threads have shaped their tiles full. */

/* Floats [row][columns] turned, and back. */
void share_turn(const Turned *to, const float *from, int64_t rows, int64_t columns);
void share_turn_back(float *to, const Turned *from, int64_t rows, int64_t columns);
/* Floats [row][columns] to rows of a product. */
void share_round(const Rows *to, const float *from, int64_t rows, int64_t columns);
/* bfloat16 of one group, `count` rows. */
void pair_group(const Rows *to, int64_t group, const uint16_t *from, int64_t count, int64_t columns);
/* out = or += rows * weight^T. */
void share_product(const Weight *weight, const Rows *rows, const Turned *out, int add);
/* The same for rows of one thread, at most STRIP groups. */
void product(const Weight *weight, const Rows *rows, const Turned *out, int add);
/* gated = silu(rows * gate^T) * (rows * up^T) of a weight [gate; up]; halves of whole panels. */
void share_gate(const Weight *weight, const Rows *rows, const Rows *gated);
void gate(const Weight *weight, const Rows *rows, const Rows *gated);
/* Attention of queries [token][stride] to out [token][head * head_dim], all bfloat16. */
void share_attention(const Attention *a, int64_t layer, int64_t window, const uint16_t *queries,
                     int64_t stride, uint16_t *out);

#endif

/* Whether this processor has what the setting needs. */
int rounded_fits(void);
/* As the functions of the same names in layers.h, for what is `rounded`. */
void rounded_linear(const Weight *weight, const float *in, float *out, int64_t rows, int add,
                    int threads);
void rounded_row(const Weight *weight, int64_t out, float *to);
void rounded_attention(const Attention *a, int64_t layer, const float *queries, float *out,
                       int64_t tokens, int threads);
void rounded_layers(const Layer *layers, int64_t count, const Step *step);

#endif
