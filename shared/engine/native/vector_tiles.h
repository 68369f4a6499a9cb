/* Products of tiles in vectors of bfloat16 (AVX512_BF16), where the processor has no tiles.
 *
 * An element's sum takes pair of ins after pair, block after block, in one chain: the same bits
 * whichever of the two functions computes it, and whatever lies beside it. */
#ifndef BATON_VECTOR_TILES_H
#define BATON_VECTOR_TILES_H

#include "rounded.h"

#ifdef VECTOR_TILES

INLINE __m512bh pairs_at(const uint16_t *from) { return (__m512bh)_mm512_loadu_si512(from); }

/* One pair of ins in all lanes. */
INLINE __m512bh pair_of(const uint16_t *from) {
    int32_t both;
    memcpy(&both, from, sizeof both);
    return (__m512bh)_mm512_set1_epi32(both);
}

/* Blocks of a tile's operands: `row` cells from a row to the next, `step` from a block to the next. */
typedef struct {
    const uint16_t *cells;
    int64_t row, step;
} Operand;

/* sums[16][16] = or += the products of so many blocks; columns' rows are BLOCK cells apart. */
INLINE void multiply_blocks(float *sums, int fresh, Operand rows, Operand columns, int64_t blocks) {
    __m512 sum[HIGH];
#pragma GCC unroll 16
    for (int i = 0; i < HIGH; i++)
        sum[i] = fresh ? _mm512_setzero_ps() : _mm512_load_ps(sums + i * LANES);
    for (int64_t block = 0; block < blocks; block++) {
        const uint16_t *row = rows.cells + block * rows.step;
        const uint16_t *column = columns.cells + block * columns.step;
        for (int pair = 0; pair < HIGH; pair++, row += 2, column += BLOCK) {
            __m512bh here = pairs_at(column);
#pragma GCC unroll 16
            for (int i = 0; i < HIGH; i++)
                sum[i] = _mm512_dpbf16_ps(sum[i], here, pair_of(row + i * rows.row));
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < HIGH; i++) _mm512_store_ps(sums + i * LANES, sum[i]);
}

/* Two tiles of sums that share the rows, as `multiply_blocks` makes each of them: what is spread
 * over the lanes serves both. */
INLINE void multiply_two(float *const sums[2], int fresh, Operand rows, const Operand columns[2],
                         int64_t blocks) {
    for (int from = 0; from < HIGH; from += HIGH / 2) {
        __m512 sum[HIGH / 2][2];
#pragma GCC unroll 8
        for (int i = 0; i < HIGH / 2; i++)
#pragma GCC unroll 2
            for (int side = 0; side < 2; side++)
                sum[i][side] = fresh ? _mm512_setzero_ps()
                                     : _mm512_load_ps(sums[side] + (from + i) * LANES);
        for (int64_t block = 0; block < blocks; block++) {
            const uint16_t *row = rows.cells + block * rows.step + from * rows.row;
            const uint16_t *first = columns[0].cells + block * columns[0].step;
            const uint16_t *second = columns[1].cells + block * columns[1].step;
            for (int pair = 0; pair < HIGH; pair++, row += 2, first += BLOCK, second += BLOCK) {
                __m512bh here = pairs_at(first), there = pairs_at(second);
#pragma GCC unroll 8
                for (int i = 0; i < HIGH / 2; i++) {
                    __m512bh spread = pair_of(row + i * rows.row);
                    sum[i][0] = _mm512_dpbf16_ps(sum[i][0], here, spread);
                    sum[i][1] = _mm512_dpbf16_ps(sum[i][1], there, spread);
                }
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < HIGH / 2; i++)
#pragma GCC unroll 2
            for (int side = 0; side < 2; side++)
                _mm512_store_ps(sums[side] + (from + i) * LANES, sum[i][side]);
    }
}

#define FEW 8 /* rows that are few */

/* Sums of `few` columns of a tile with the rows in the lanes, out of [row][column] and back. */
INLINE void take_columns(__m512 sum[FEW], int few, int fresh, const float *sums) {
    float kept[LANES] __attribute__((aligned(64)));
    for (int i = 0; i < few; i++) {
        for (int lane = 0; lane < LANES; lane++) kept[lane] = fresh ? 0.0f : sums[lane * LANES + i];
        sum[i] = _mm512_load_ps(kept);
    }
}

INLINE void put_columns(const __m512 sum[FEW], int few, float *sums) {
    float kept[LANES] __attribute__((aligned(64)));
    for (int i = 0; i < few; i++) {
        _mm512_store_ps(kept, sum[i]);
        for (int lane = 0; lane < LANES; lane++) sums[lane * LANES + i] = kept[lane];
    }
}

/* The chains of `multiply_blocks` for a few columns of two tiles, through one block whose rows are
 * turned: [pair][row][2]. Sixteen columns would mostly be wasted. */
INLINE void multiply_few(__m512 first[FEW], __m512 second[FEW], int few,
                         const uint16_t turned[2][TILE], const uint16_t *column) {
#pragma GCC unroll 16
    for (int pair = 0; pair < HIGH; pair++) {
        __m512bh left = pairs_at(turned[0] + pair * BLOCK), right = pairs_at(turned[1] + pair * BLOCK);
#pragma GCC unroll 8
        for (int i = 0; i < few; i++) {
            __m512bh here = pair_of(column + pair * BLOCK + 2 * i);
            first[i] = _mm512_dpbf16_ps(first[i], left, here);
            second[i] = _mm512_dpbf16_ps(second[i], right, here);
        }
    }
}

#endif
#endif
