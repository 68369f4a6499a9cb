/* A weight [outs, ins] in memory: panels of sixteen outs; a panel is blocks of 32 ins; a block is
 * 32 x 16 weights, lane by lane:
 *
 *   FLOAT32  float w[32][16]                                BFLOAT16, FLOAT16  uint16 w[32][16]
 *   Q8_0     half d[16];             int8 q[32][16]         w = d q
 *   Q4_0     half d[16];             uint32 q[4][16]        w = d (q - 8), eight q in a word
 *   Q4_1     half d[16]; half m[16]; uint32 q[4][16]        w = d q + m
 *   INT8     int8 q[32][16]                                 w = d q, one d for each out, outside
 *
 * A word has the even ins' four bits in its lower half, the odd ones' in its upper. d q is exact in
 * float32, so a weight is the same bits as one read in float32 from the file. */
#ifndef BATON_WEIGHT_H
#define BATON_WEIGHT_H

#include "tile.h"

#define BLOCK 32

typedef struct {
    const uint8_t *panels;
    const float *scales; /* INT8: one for each out, padded; else unused */
    int64_t kind, outs, ins;
    int64_t rounded; /* to bfloat16 before it is multiplied, and the rows with it */
} Weight;

static int64_t block_bytes(int64_t kind) {
    switch (kind) {
    case FLOAT32: return BLOCK * LANES * 4;
    case BFLOAT16:
    case FLOAT16: return BLOCK * LANES * 2;
    case Q8_0: return LANES * 2 + BLOCK * LANES;
    case Q4_0: return LANES * 2 + BLOCK * LANES / 2;
    case Q4_1: return LANES * 4 + BLOCK * LANES / 2;
    default: return BLOCK * LANES;
    }
}

INLINE vec halves(const uint16_t *from) {
#if defined(__AVX512F__)
    return (vec)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
#elif defined(__F16C__)
    return (vec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from));
#else
    vec wide;
    for (int lane = 0; lane < WIDTH; lane++) wide[lane] = from_half(from[lane]);
    return wide;
#endif
}

/* planes.c: the same product in the processor's matrix tiles, where it has them. */
int planes_fit(const Weight *weight);
void planes_linear(const Weight *weight, const float *in, float *out, int64_t rows, int add,
                   int threads);

#endif
