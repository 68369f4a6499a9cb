/* Weights out of their codes, a vector of lanes at a time; see weight.h for where they lie. */
#ifndef BATON_CODES_H
#define BATON_CODES_H

#include "weight.h"

INLINE vec bytes(const int8_t *from) {
#if defined(__AVX512F__)
    return (vec)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from)));
#elif defined(__AVX2__)
    return (vec)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)from)));
#else
    typedef int8_t few __attribute__((vector_size(WIDTH)));
    few packed;
    memcpy(&packed, from, sizeof packed);
    return __builtin_convertvector(packed, vec);
#endif
}

INLINE vec brains(const uint16_t *from) {
    typedef uint16_t few __attribute__((vector_size(2 * WIDTH)));
    typedef uint32_t words __attribute__((vector_size(4 * WIDTH)));
    few packed;
    memcpy(&packed, from, sizeof packed);
    return (vec)(__builtin_convertvector(packed, words) << 16);
}

/* The lowest four bits of each word as a number. */
INLINE vec nibbles(ivec words) {
#ifdef __AVX512F__
    const vec numbers = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return (vec)_mm512_permutexvar_ps((__m512i)words, (__m512)numbers);
#else
    return __builtin_convertvector(words & 15, vec);
#endif
}

/* Scales of a block; gives where its codes begin. */
INLINE const uint8_t *scales_of(int kind, const uint8_t *block, const float *scales, vec d[PARTS],
                                vec m[PARTS]) {
    const uint16_t *stored = (const uint16_t *)block;
    for (int part = 0; part < PARTS; part++) {
        if (kind == INT8) d[part] = load(scales + part * WIDTH);
        if (kind == Q8_0 || kind == Q4_0 || kind == Q4_1) d[part] = halves(stored + part * WIDTH);
        if (kind == Q4_0) m[part] = d[part] * -8.0f;
        if (kind == Q4_1) m[part] = halves(stored + LANES + part * WIDTH);
    }
    if (kind == Q8_0 || kind == Q4_0) block += LANES * 2;
    if (kind == Q4_1) block += LANES * 4;
    return block;
}

/* A vector of lanes' weights at one place of a block, from its codes. */
INLINE vec weights_at(int kind, const uint8_t *codes, int k, int part, vec d, vec m) {
    int place = k * LANES + part * WIDTH;
    switch (kind) {
    case FLOAT32: return load((const float *)codes + place);
    case BFLOAT16: return brains((const uint16_t *)codes + place);
    case FLOAT16: return halves((const uint16_t *)codes + place);
    case Q4_0:
    case Q4_1: {
        ivec word = *(const loose_ivec *)(codes + k / 8 * 64 + part * WIDTH * 4);
        return nibbles(word >> (k % 8 / 2 * 4 + k % 2 * 16)) * d + m;
    }
    default: return bytes((const int8_t *)codes + place) * d;
    }
}

/* Bytes of eight neighbouring ins' codes. */
INLINE int size_of_eight(int kind) {
    switch (kind) {
    case FLOAT32: return 8 * LANES * 4;
    case BFLOAT16:
    case FLOAT16: return 8 * LANES * 2;
    case Q4_0:
    case Q4_1: return 4 * LANES;
    default: return 8 * LANES;
    }
}

#endif
