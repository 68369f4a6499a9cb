/* Products of bfloat16 a tile at a time: 16 rows of 64 bytes each.
 *
 *   sums[16][16] float32 += rows[16][32] bfloat16 * columns[16 pairs of ins][16][2] bfloat16
 *
 * An element of the sums depends on its own row and column only, and on the order of the calls.
 * MATRIX_TILES: the processor has them (Intel AMX). VECTOR_TILES: it has vectors of bfloat16 only
 * (AVX512_BF16), of which vector_tiles.h makes the same. ROUNDED: either. */
#ifndef BATON_MATRIX_TILES_H
#define BATON_MATRIX_TILES_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "weight.h"

#define HIGH 16 /* rows of a tile */
#define TILE (HIGH * BLOCK)

/* The compiler does not know that tiles are loaded from memory. */
#define SETTLE() __asm__ volatile("" ::: "memory")

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AVX512BF16__) && \
    defined(__AVX512BW__) && defined(__linux__)
#define MATRIX_TILES

#include <sys/syscall.h>
#include <unistd.h>

#define ALLOW_TILES 0x1023
#define TILE_STATE 18

/* Asks the system once for the right to use them. */
static inline int tiles_allowed(void) {
    static int known;
    if (!known) known = syscall(SYS_arch_prctl, ALLOW_TILES, TILE_STATE) ? -1 : 1;
    return known > 0;
}

/* The first `few` of the eight tiles have `rows` rows, the others all. */
static inline void shape_tiles(int few, int rows) {
    struct {
        uint8_t palette, start, unused[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shape = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) {
        shape.bytes[tile] = 64;
        shape.rows[tile] = (uint8_t)(tile < few ? rows : HIGH);
    }
    SETTLE();
    _tile_loadconfig(&shape);
}

static inline void release_tiles(void) { _tile_release(); }

#else

#if defined(__AVX512BF16__) && defined(__AVX512BW__)
#define VECTOR_TILES
#endif

static inline int tiles_allowed(void) { return 0; }
static inline void shape_tiles(int few, int rows) { (void)few, (void)rows; }
static inline void release_tiles(void) {}

#endif

#if defined(MATRIX_TILES) || defined(VECTOR_TILES)
#define ROUNDED
#endif
#endif
