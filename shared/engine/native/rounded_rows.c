/* Rows on their side: how they come in, go out, and where they are kept. */
#include "rounded.h"

#ifdef ROUNDED

#include <stdlib.h>

char *rounded_room(int64_t bytes) {
    static _Thread_local void *kept;
    static _Thread_local int64_t size;
    if (bytes > size) {
        free(kept);
        size = (bytes + 4095) / 4096 * 4096;
        kept = aligned_alloc(4096, (size_t)size);
        if (kept == NULL) abort();
        memset(kept, 0, (size_t)size);
    }
    return kept;
}

Rows take_rows(char **room, int64_t rows, int64_t columns) {
    Rows taken = {(uint16_t *)*room, groups_of(rows), blocks_of(columns), rows};
    *room += rows_bytes(rows, columns);
    return taken;
}

Turned take_turned(char **room, int64_t rows, int64_t columns) {
    Turned taken = {(float *)*room, groups_of(rows), (columns + LANES - 1) / LANES * LANES};
    *room += turned_bytes(rows, columns);
    return taken;
}

/* The first `count` of sixteen. */
INLINE __mmask16 first_of(int64_t count) {
    return count >= LANES ? 0xFFFF : count <= 0 ? 0 : (__mmask16)((1u << count) - 1);
}

void share_turn(const Turned *to, const float *from, int64_t rows, int64_t columns) {
#pragma omp for schedule(static)
    for (int64_t group = 0; group < to->groups; group++)
        for (int64_t column = 0; column < columns; column += LANES) {
            __m512i words[HIGH];
            for (int64_t i = 0; i < HIGH; i++) {
                int64_t row = group * HIGH + i;
                __mmask16 there = row < rows ? first_of(columns - column) : 0;
                words[i] = _mm512_maskz_loadu_epi32(there, from + row * columns + column);
            }
            turn_words(words);
            for (int i = 0; i < HIGH; i++)
                _mm512_store_si512(column_at(to, group, column + i), words[i]);
        }
}

void share_turn_back(float *to, const Turned *from, int64_t rows, int64_t columns) {
#pragma omp for schedule(static)
    for (int64_t group = 0; group < from->groups; group++)
        for (int64_t column = 0; column < columns; column += LANES) {
            __m512i words[HIGH];
            for (int i = 0; i < HIGH; i++)
                words[i] = _mm512_load_si512(column_at(from, group, column + i));
            turn_words(words);
            for (int64_t i = 0; i < HIGH && group * HIGH + i < rows; i++)
                _mm512_mask_storeu_epi32(to + (group * HIGH + i) * columns + column,
                                         first_of(columns - column), words[i]);
        }
}

/* One block of a row from floats, zero beyond `left` columns. */
INLINE __m512i round_block(const float *from, int64_t left) {
    return rounded(_mm512_maskz_loadu_ps(first_of(left), from),
                   _mm512_maskz_loadu_ps(first_of(left - LANES), from + LANES));
}

INLINE void store_block(const Rows *to, int64_t group, int64_t block, __m512i words[HIGH]) {
    turn_words(words);
    for (int i = 0; i < HIGH; i++)
        _mm512_store_si512(block_at(to, group, block) + i * BLOCK, words[i]);
}

void share_round(const Rows *to, const float *from, int64_t rows, int64_t columns) {
#pragma omp for schedule(static)
    for (int64_t group = 0; group < to->groups; group++)
        for (int64_t block = 0; block < to->blocks; block++) {
            __m512i words[HIGH];
            for (int64_t i = 0; i < HIGH; i++) {
                int64_t row = group * HIGH + i, at = block * BLOCK;
                int64_t left = row < rows ? columns - at : 0;
                words[i] = round_block(from + row * columns + at, left);
            }
            store_block(to, group, block, words);
        }
}

void pair_group(const Rows *to, int64_t group, const uint16_t *from, int64_t count,
                int64_t columns) {
    for (int64_t block = 0; block < to->blocks; block++) {
        __m512i words[HIGH];
        for (int64_t i = 0; i < HIGH; i++)
            words[i] = i < count ? _mm512_loadu_si512(from + i * columns + block * BLOCK)
                                 : _mm512_setzero_si512();
        store_block(to, group, block, words);
    }
}

#endif
