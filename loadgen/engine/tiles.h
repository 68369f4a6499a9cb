/* Included before llama.cpp's sources. GCC 12 does not know that AMX instructions read memory and
 * drops the stores before them: a tile's shape is then garbage, and the process dies. */
#if defined(__AMX_TILE__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>

#undef _tile_loadd
#define _tile_loadconfig(from) __asm__ volatile("ldtilecfg (%0)" ::"r"(from) : "memory")
#define _tile_loadd(tile, from, stride) TILE_LOAD(tile, from, stride)
#define TILE_LOAD(tile, from, stride)                        \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r" \
                     ((const void *)(from)), "r"((long)(stride)) : "memory")
#endif
