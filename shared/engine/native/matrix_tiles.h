/* The processor's matrix tiles (Intel AMX), where it has them: 16 rows of 64 bytes each.
 *
 *   sums[16][16] float32 += rows[16][32] bfloat16 * columns[16 pairs of ins][16][2] bfloat16
 *
 * An element of the sums depends on its own row and column only, and on the order of the calls. */
#ifndef BATON_MATRIX_TILES_H
#define BATON_MATRIX_TILES_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "weight.h"

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AVX512BF16__) && \
    defined(__AVX512BW__) && defined(__linux__)
#define MATRIX_TILES

#include <sys/syscall.h>
#include <unistd.h>

#define HIGH 16 /* rows of a tile */
#define TILE (HIGH * BLOCK)
#define ALLOW_TILES 0x1023
#define TILE_STATE 18

/* Asks the system once for the right to use them. */
static inline int tiles_allowed(void) {
    static int known;
    if (!known) known = syscall(SYS_arch_prctl, ALLOW_TILES, TILE_STATE) ? -1 : 1;
    return known > 0;
}

/* The compiler does not know that tiles are loaded from memory. */
#define SETTLE() __asm__ volatile("" ::: "memory")

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

#else

static inline int tiles_allowed(void) { return 0; }

#endif
#endif
