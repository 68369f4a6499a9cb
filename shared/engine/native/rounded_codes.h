/* Weights of the rounded setting out of their codes: a tile [16 outs][32 ins] of bfloat16.
 *
 * A weight [outs, ins] in memory: panels of sixteen outs; a panel is blocks of 32 ins; a block is
 *
 *   BFLOAT16  uint16 w[16][32]                              a tile as it is
 *   Q8_0      half d[16];             int8 q[16][32]        w = d q
 *   Q4_0      half d[16];             uint16 q[16][8]       w = d (q - 8)
 *   Q4_1      half d[16]; half m[16]; uint16 q[16][8]       w = d q + m
 *   INT8      int8 q[16][32]                                w = d q, one d for each out, outside
 *
 * Word i of a row has the ins i, i + 8, i + 16 and i + 24, from the lowest four bits on. Sixteen
 * codes can give sixteen values only: a row's four-bit codes look them up. */
#ifndef BATON_ROUNDED_CODES_H
#define BATON_ROUNDED_CODES_H

#include "rounded.h"

/* What a row's codes of four bits mean in this block, twice. */
INLINE __m512i meanings(float d, float m) {
    const __m512 numbers = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    __m512 values = _mm512_fmadd_ps(numbers, _mm512_set1_ps(d), _mm512_set1_ps(m));
    return rounded(values, values);
}

/* A row's 32 codes of four bits, each the lowest four bits of a word. */
INLINE __m512i spread(const uint8_t *row) {
    const __m512i down = (__m512i)(short __attribute__((vector_size(64)))){
        0, 0, 0, 0, 0, 0, 0, 0, 4,  4,  4,  4,  4,  4,  4,  4,
        8, 8, 8, 8, 8, 8, 8, 8, 12, 12, 12, 12, 12, 12, 12, 12};
    __m512i words = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)row));
    return _mm512_srlv_epi16(words, down);
}

/* A row's 32 codes of eight bits times their scale. */
INLINE __m512i scaled(const uint8_t *row, float d) {
    __m512i first = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)row));
    __m512i second = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(row + LANES)));
    return rounded(_mm512_mul_ps(_mm512_cvtepi32_ps(first), _mm512_set1_ps(d)),
                   _mm512_mul_ps(_mm512_cvtepi32_ps(second), _mm512_set1_ps(d)));
}

/* Scales of a block's rows; gives where its codes begin. */
INLINE const uint8_t *scales_of_rows(int kind, const Weight *weight, int64_t panel,
                                     const uint8_t *block, float d[LANES], float m[LANES]) {
    const uint16_t *stored = (const uint16_t *)block;
    if (kind == INT8) {
        store(d, load(weight->scales + panel * LANES));
        return block;
    }
    vec scale = halves(stored);
    store(d, scale);
    if (kind == Q4_0) store(m, scale * all(-8.0f));
    if (kind == Q4_1) store(m, halves(stored + LANES));
    return block + (kind == Q4_1 ? 4 : 2) * LANES;
}

INLINE __m512i row_of_codes(int kind, const uint8_t *codes, int row, float d, float m) {
    if (kind == Q8_0 || kind == INT8) return scaled(codes + row * BLOCK, d);
    return _mm512_permutexvar_epi16(spread(codes + row * BLOCK / 2), meanings(d, m));
}

/* A block to a tile; fetches what lies `ahead` bytes behind it, which will be drawn some blocks
 * later: the processor's own prefetching stops at each 4 KiB, and more than a few lines at once
 * are only fetched to the second cache. */
INLINE void draw(int kind, const Weight *weight, int64_t panel, const uint8_t *block, int64_t ahead,
                 uint16_t *to) {
    float d[LANES] __attribute__((aligned(64))), m[LANES] __attribute__((aligned(64)));
    int64_t size = block_bytes(kind);
    for (int64_t at = 0; at < size; at += 64) __builtin_prefetch(block + ahead + at, 0, 1);
    const uint8_t *codes = scales_of_rows(kind, weight, panel, block, d, m);
    SETTLE(); /* So that scales are broadcast from memory, not drawn from a register. */
#pragma GCC unroll 16
    for (int row = 0; row < LANES; row++)
        _mm512_store_si512(to + row * BLOCK, row_of_codes(kind, codes, row, d[row], m[row]));
}

#ifdef VECTOR_TILES

/* 16 rows of 16 bytes each, turned: word i of a row in its lane. */
INLINE void turn_nibbles(const uint8_t *codes, __m512i words[4]) {
    const __m512i first = {0x400000000, 0xC00000008, 0x1400000010, 0x1C00000018};
    __m512i rows[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) rows[i] = _mm512_loadu_si512(codes + 64 * i);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m512i from = _mm512_add_epi32(first, _mm512_set1_epi32(i));
        __m512i low = _mm512_permutex2var_epi32(rows[0], from, rows[1]);
        __m512i high = _mm512_permutex2var_epi32(rows[2], from, rows[3]);
        words[i] = _mm512_inserti64x4(low, _mm512_castsi512_si256(high), 1);
    }
}

/* The tile that `draw` gives, turned: [pair of ins][out][2]. */
static __attribute__((noinline)) void draw_turned(int kind, const Weight *weight, int64_t panel,
                                                  const uint8_t *block, int64_t ahead,
                                                  uint16_t *to) {
    __m512i words[HIGH];
    if (kind != Q4_0 && kind != Q4_1) {
        const uint16_t *cells = (const uint16_t *)block;
        if (kind != BFLOAT16) draw(kind, weight, panel, block, ahead, to), cells = to;
#pragma GCC unroll 16
        for (int i = 0; i < HIGH; i++) words[i] = _mm512_loadu_si512(cells + i * BLOCK);
        turn_words(words);
#pragma GCC unroll 16
        for (int i = 0; i < HIGH; i++) _mm512_store_si512(to + i * BLOCK, words[i]);
        return;
    }
    const __m512 numbers = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const uint16_t *stored = (const uint16_t *)block;
    __m512 d = (__m512)halves(stored), m = _mm512_mul_ps(d, _mm512_set1_ps(-8.0f));
    if (kind == Q4_1) m = (__m512)halves(stored + LANES);
    for (int64_t at = 0; at < block_bytes(kind); at += 64) __builtin_prefetch(block + ahead + at);
    turn_nibbles(block + (kind == Q4_1 ? 4 : 2) * LANES, words);
#pragma GCC unroll 16
    for (int pair = 0; pair < HIGH; pair++) {
        __m512i low = _mm512_srli_epi32(words[pair % 4], pair / 4 * 4);
        __m512i high = _mm512_srli_epi32(words[pair % 4], pair / 4 * 4 + 16);
        __m512 even = _mm512_fmadd_ps(_mm512_permutexvar_ps(low, numbers), d, m);
        __m512 odd = _mm512_fmadd_ps(_mm512_permutexvar_ps(high, numbers), d, m);
        _mm512_store_si512(to + pair * BLOCK, paired(even, odd));
    }
}

#endif

/* One row of a block. */
static inline void draw_row(const Weight *weight, int64_t panel, const uint8_t *block, int row,
                            uint16_t *to) {
    float d[LANES], m[LANES] = {0};
    int kind = (int)weight->kind;
    if (kind == BFLOAT16) {
        memcpy(to, (const uint16_t *)block + row * BLOCK, BLOCK * sizeof *to);
        return;
    }
    const uint8_t *codes = scales_of_rows(kind, weight, panel, block, d, m);
    _mm512_storeu_si512(to, row_of_codes(kind, codes, row, d[row], m[row]));
}

#endif
