/* The one product that everything here is made of: some rows times two vectors of columns.
 *
 *   c[row][lane] += sum over k of a[row][k] * b[k][lane]        k in order, one fused add each
 *
 * The order of the sum does not depend on how many rows there are, so a row's result is the same
 * bits whatever is computed beside it. Goto & van de Geijn (2008) for the shape of the tile: its
 * sums fill the registers, 24 of 32 with AVX-512, 12 of 16 without. */
#ifndef BATON_TILE_H
#define BATON_TILE_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#ifdef __AVX512F__
#define WIDTH 16
#define ROWS 12
#else
#define WIDTH 8
#define ROWS 6
#endif
#define LANES 16
#define PARTS (LANES / WIDTH) /* vectors side by side in a panel */
#define COLUMNS (2 * WIDTH)   /* of a tile */
#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(4 * WIDTH)));
typedef int32_t ivec __attribute__((vector_size(4 * WIDTH)));
typedef float loose_vec __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef int32_t loose_ivec __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));

enum { FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2, Q8_0 = 3, Q4_0 = 4, Q4_1 = 5, INT8 = 6 };

INLINE vec load(const float *from) { return *(const loose_vec *)from; }
INLINE void store(float *to, vec value) { *(loose_vec *)to = value; }
INLINE vec all(float value) { return value - (vec){}; }

/* A lane of `yes` where the mask's is all ones, of `no` where it is zero. */
INLINE vec choose(ivec mask, vec yes, vec no) {
    return (vec)((mask & (ivec)yes) | (~mask & (ivec)no));
}
/* `y` where either is no number. */
INLINE vec larger(vec x, vec y) {
#ifdef __AVX512F__
    return (vec)_mm512_max_ps((__m512)x, (__m512)y);
#else
    return choose(x > y, x, y);
#endif
}

/* Rows times columns, as `multiply_tile` takes them. The rows of `b` lie in `pieces` places, `each`
 * of them in all but the last, which has `last`. */
typedef struct {
    float *c;
    const float *a;
    const float *const *b;
    long c_stride, a_stride, b_stride;
    int pieces, each, last;
    int fresh; /* begin with zeros, not with what is in c */
} Product;

/* Written so that the compiler keeps the whole tile in registers: rows and vecs are constants. */
INLINE void tile_of(int rows, int vecs, const Product *p) {
    vec acc[ROWS][2];
#pragma GCC unroll 12
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 2
        for (int v = 0; v < vecs; v++)
            acc[row][v] = p->fresh ? all(0) : load(p->c + row * p->c_stride + v * WIDTH);
    const float *a = p->a;
    long a_stride = p->a_stride, b_stride = p->b_stride;
    for (int piece = 0; piece < p->pieces; piece++) {
        const float *b = p->b[piece];
        int count = piece + 1 < p->pieces ? p->each : p->last;
        for (int k = 0; k < count; k++, a++, b += b_stride) {
            vec columns[2];
#pragma GCC unroll 2
            for (int v = 0; v < vecs; v++) columns[v] = load(b + v * WIDTH);
#pragma GCC unroll 12
            for (int row = 0; row < rows; row++) {
                vec value = all(a[row * a_stride]);
#pragma GCC unroll 2
                for (int v = 0; v < vecs; v++) acc[row][v] += value * columns[v];
            }
        }
    }
#pragma GCC unroll 12
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 2
        for (int v = 0; v < vecs; v++) store(p->c + row * p->c_stride + v * WIDTH, acc[row][v]);
}

INLINE void tile_by_rows(int rows, int vecs, const Product *p) {
    switch (rows) {
    case 1: tile_of(1, vecs, p); break;
    case 2: tile_of(2, vecs, p); break;
    case 3: tile_of(3, vecs, p); break;
    case 4: tile_of(4, vecs, p); break;
    case 5: tile_of(5, vecs, p); break;
#if ROWS > 6
    case 6: tile_of(6, vecs, p); break;
    case 7: tile_of(7, vecs, p); break;
    case 8: tile_of(8, vecs, p); break;
    case 9: tile_of(9, vecs, p); break;
    case 10: tile_of(10, vecs, p); break;
    case 11: tile_of(11, vecs, p); break;
#endif
    default: tile_of(ROWS, vecs, p); break;
    }
}

/* c[rows][columns] = or += a[rows][k] * b[k][columns], rows <= ROWS, columns COLUMNS or WIDTH. */
static void multiply_tile(int rows, int columns, const Product *p) {
    if (columns == COLUMNS) tile_by_rows(rows, 2, p);
    else tile_by_rows(rows, 1, p);
}

/* How many of `rows` a tile takes so that all tiles are about as high. */
INLINE int tile_rows(int64_t rows) {
    int64_t tiles = (rows + ROWS - 1) / ROWS;
    return (int)((rows + tiles - 1) / tiles);
}
/* e^x for x <= 0, to about 2 units in the last place: Cody & Waite's reduction. */
INLINE vec exponential(vec x) {
    const vec magic = all(12582912.0f);
    x = larger(all(-87.0f), x);
    vec turns = (x * all(1.44269504088896341f) + magic) - magic;
    vec rest = x - turns * all(0.693359375f);
    rest = rest + turns * all(2.12194440e-4f);
    vec sum = all(1.9875691500e-4f);
    sum = sum * rest + all(1.3981999507e-3f);
    sum = sum * rest + all(8.3334519073e-3f);
    sum = sum * rest + all(4.1665795894e-2f);
    sum = sum * rest + all(1.6666665459e-1f);
    sum = sum * rest + all(5.0000001201e-1f);
    sum = sum * rest * rest + rest + all(1.0f);
#ifdef __AVX512F__
    return (vec)_mm512_scalef_ps((__m512)sum, (__m512)turns);
#else
    ivec power = (__builtin_convertvector(turns, ivec) + 127) << 23;
    return sum * (vec)power;
#endif
}

INLINE float from_half(uint16_t bits) {
    _Float16 value;
    memcpy(&value, &bits, sizeof value);
    return (float)value;
}

INLINE float from_brain(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

INLINE uint16_t to_half(float value) {
    _Float16 narrow = (_Float16)value;
    uint16_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    return bits;
}

/* Round to nearest, ties to even; a NaN stays one. */
INLINE uint16_t to_brain(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value) return (uint16_t)((bits >> 16) | 0x40);
    return (uint16_t)((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

/* Cells of the KV pages, widened; `kind` is FLOAT32, BFLOAT16 or FLOAT16. */
static inline void widen(float *to, const void *from, int kind, long count) {
    const uint16_t *narrow = from;
    if (kind == FLOAT32) memcpy(to, from, count * sizeof(float));
    else if (kind == BFLOAT16)
        for (long i = 0; i < count; i++) to[i] = from_brain(narrow[i]);
    else
        for (long i = 0; i < count; i++) to[i] = from_half(narrow[i]);
}

static inline void narrow(void *to, const float *from, int kind, long count) {
    uint16_t *cells = to;
    if (kind == FLOAT32) memcpy(to, from, count * sizeof(float));
    else if (kind == BFLOAT16)
        for (long i = 0; i < count; i++) cells[i] = to_brain(from[i]);
    else
        for (long i = 0; i < count; i++) cells[i] = to_half(from[i]);
}

#endif
