/* Products of rounded weights and rows. A job is two panels of outs for all rows: their weights,
 * drawn from the codes once, stay in the first cache while the rows pass by. */
#include "rounded.h"

#ifdef VECTOR_TILES
int rounded_fits(void) { return 1; }
#else
int rounded_fits(void) { return tiles_allowed(); }
#endif

#ifdef ROUNDED

#include <omp.h>

#include "rounded_codes.h"
#include "vector_tiles.h"

#define DEPTH 9  /* blocks at a time: with the rows beside them they stay in the first cache */
#define PAIR 2   /* panels of a job */
#define SLOTS 4  /* blocks between drawing and multiplying where few rows pass */
#define LAG 2

typedef uint16_t Drawn[DEPTH][PAIR][TILE];

/* Two panels of outs on their way through the blocks. */
typedef struct {
    const Weight *weight;
    int64_t panel[PAIR];
    int panels;
} Job;

/* Where a tile of sums is: of a group of rows and a side of the pair. */
typedef struct {
    float *cells;
    int64_t group_step, side_step;
} Sums;

INLINE float *tile_at(const Sums *sums, int64_t group, int side) {
    return sums->cells + group * sums->group_step + side * sums->side_step;
}

#ifdef MATRIX_TILES

static int passed_few(const Job *job, const Rows *rows, const Sums *sums, int add) {
    (void)job, (void)rows, (void)sums, (void)add;
    return 0;
}

#define START(tile, at)                     \
    if (fresh) _tile_zero(tile);            \
    else _tile_loadd(tile, at, 64);

/* Tiles 0 to 3: sums of two panels, two groups; 4 and 5: weights; 6 and 7: rows. */
INLINE void load_sums(const Sums *sums, int64_t group, int panels, int groups, int fresh) {
    SETTLE();
    START(0, tile_at(sums, group, 0))
    if (panels > 1) { START(1, tile_at(sums, group, 1)) }
    if (groups > 1) { START(2, tile_at(sums, group + 1, 0)) }
    if (panels > 1 && groups > 1) { START(3, tile_at(sums, group + 1, 1)) }
}

INLINE void store_sums(const Sums *sums, int64_t group, int panels, int groups) {
    _tile_stored(0, tile_at(sums, group, 0), 64);
    if (panels > 1) _tile_stored(1, tile_at(sums, group, 1), 64);
    if (groups > 1) _tile_stored(2, tile_at(sums, group + 1, 0), 64);
    if (panels > 1 && groups > 1) _tile_stored(3, tile_at(sums, group + 1, 1), 64);
    SETTLE();
}

INLINE void multiply(int panels, int groups, const uint16_t *first, const uint16_t *second,
                     const uint16_t *rows, int64_t next_group) {
    _tile_loadd(4, first, 64);
    _tile_loadd(6, rows, 64);
    _tile_dpbf16ps(0, 4, 6);
    if (panels > 1) {
        _tile_loadd(5, second, 64);
        _tile_dpbf16ps(1, 5, 6);
    }
    if (groups > 1) {
        _tile_loadd(7, rows + next_group, 64);
        _tile_dpbf16ps(2, 4, 7);
    }
    if (panels > 1 && groups > 1) _tile_dpbf16ps(3, 5, 7);
}

/* One or two groups of rows: multiply a block while those after it are drawn. */
INLINE void pass_few(int kind, int panels, int groups, const Job *job, const Rows *rows,
                     const Sums *sums, int add) {
    uint16_t drawn[SLOTS][PAIR][TILE] __attribute__((aligned(64)));
    int64_t blocks = rows->blocks, size = block_bytes(kind);
    const uint8_t *at[PAIR];
    for (int side = 0; side < panels; side++)
        at[side] = job->weight->panels + job->panel[side] * blocks * size;
    load_sums(sums, 0, panels, groups, !add);
    for (int64_t block = 0; block < blocks + LAG; block++) {
        if (block < blocks)
            for (int side = 0; side < panels; side++)
                draw(kind, job->weight, job->panel[side], at[side] + block * size,
                     PAIR * blocks * size, drawn[block % SLOTS][side]);
        SETTLE();
        int64_t now = block - LAG;
        if (now >= 0)
            multiply(panels, groups, drawn[now % SLOTS][0], drawn[now % SLOTS][1],
                     block_at(rows, 0, now), blocks * TILE);
    }
    store_sums(sums, 0, panels, groups);
}

/* Weights that are tiles already. */
INLINE void pass_tiles(int panels, int groups, const Job *job, const Rows *rows, int64_t group,
                       const Sums *sums, int add) {
    int64_t blocks = rows->blocks;
    const uint16_t *cells = (const uint16_t *)job->weight->panels;
    const uint16_t *first = cells + job->panel[0] * blocks * TILE;
    const uint16_t *second = cells + job->panel[panels - 1] * blocks * TILE;
    load_sums(sums, group, panels, groups, !add);
    for (int64_t block = 0; block < blocks; block++, first += TILE, second += TILE)
        multiply(panels, groups, first, second, block_at(rows, group, block), blocks * TILE);
    store_sums(sums, group, panels, groups);
}

/* `count` blocks that were drawn, for one or two groups. */
INLINE void pass_drawn(int panels, int groups, Drawn drawn, int count, const Rows *rows,
                       int64_t group, int64_t block, const Sums *sums, int add) {
    const uint16_t *cells = block_at(rows, group, block);
    load_sums(sums, group, panels, groups, !add);
    for (int i = 0; i < count; i++, cells += TILE)
        multiply(panels, groups, drawn[i][0], drawn[i][1], cells, rows->blocks * TILE);
    store_sums(sums, group, panels, groups);
}

/* All groups of rows, DEPTH blocks after DEPTH blocks. */
INLINE void pass_many(int kind, int panels, const Job *job, const Rows *rows, const Sums *sums,
                      int add) {
    Drawn drawn __attribute__((aligned(64)));
    int64_t blocks = rows->blocks, size = block_bytes(kind), parts = (blocks + DEPTH - 1) / DEPTH;
    int64_t deep = (blocks + parts - 1) / parts;
    for (int64_t block = 0; block < blocks; block += deep) {
        int count = (int)(blocks - block < deep ? blocks - block : deep);
        int onto = add || block > 0;
        for (int side = 0; side < panels; side++)
            for (int i = 0; i < count; i++)
                draw(kind, job->weight, job->panel[side],
                     job->weight->panels + (job->panel[side] * blocks + block + i) * size,
                     PAIR * blocks * size, drawn[i][side]);
        int64_t group = 0;
        for (; group + 1 < rows->groups; group += 2)
            pass_drawn(panels, 2, drawn, count, rows, group, block, sums, onto);
        if (group < rows->groups)
            pass_drawn(panels, 1, drawn, count, rows, group, block, sums, onto);
    }
}

INLINE void pass_kind(int kind, int panels, const Job *job, const Rows *rows, const Sums *sums,
                      int add) {
    int64_t group = 0;
    if (kind == BFLOAT16) {
        for (; group + 1 < rows->groups; group += 2)
            pass_tiles(panels, 2, job, rows, group, sums, add);
        if (group < rows->groups) pass_tiles(panels, 1, job, rows, group, sums, add);
    } else if (rows->groups == 1) pass_few(kind, panels, 1, job, rows, sums, add);
    else if (rows->groups == 2) pass_few(kind, panels, 2, job, rows, sums, add);
    else pass_many(kind, panels, job, rows, sums, add);
}

#else

/* Up to FEW rows, `few` of them: weights are drawn with the outs in the lanes, a block while the
 * chains of the one before it run on. */
INLINE void pass_few(int few, const Job *job, const Rows *rows, const Sums *sums, int add) {
    uint16_t drawn[2][PAIR][TILE] __attribute__((aligned(64)));
    __m512 first[FEW], second[FEW];
    const Weight *weight = job->weight;
    int64_t blocks = rows->blocks, size = block_bytes(weight->kind);
    /* Beside a last panel without a second nobody reads what that gives. */
    int64_t panels[PAIR] = {job->panel[0], job->panel[job->panels - 1]};
    take_columns(first, few, !add, tile_at(sums, 0, 0));
    take_columns(second, few, !add, tile_at(sums, 0, job->panels - 1));
    for (int64_t block = 0; block < blocks; block++) {
        for (int side = 0; side < PAIR; side++)
            draw_turned((int)weight->kind, weight, panels[side],
                        weight->panels + (panels[side] * blocks + block) * size,
                        PAIR * blocks * size, drawn[block % 2][side]);
        multiply_few(first, second, few, (const uint16_t (*)[TILE])drawn[block % 2],
                     block_at(rows, 0, block));
    }
    put_columns(first, few, tile_at(sums, 0, 0));
    if (job->panels > 1) put_columns(second, few, tile_at(sums, 0, 1));
}

/* All groups of rows, DEPTH blocks after DEPTH blocks; weights that are tiles already all at once. */
INLINE void pass_many(int kind, int panels, const Job *job, const Rows *rows, const Sums *sums,
                      int add) {
    Drawn drawn __attribute__((aligned(64)));
    int64_t blocks = rows->blocks, size = block_bytes(kind), parts = (blocks + DEPTH - 1) / DEPTH;
    int64_t deep = kind == BFLOAT16 ? blocks : (blocks + parts - 1) / parts;
    for (int64_t block = 0; block < blocks; block += deep) {
        int count = (int)(blocks - block < deep ? blocks - block : deep);
        Operand weights[PAIR];
        for (int side = 0; side < panels; side++) {
            const uint8_t *from = job->weight->panels + (job->panel[side] * blocks + block) * size;
            weights[side] = (Operand){(const uint16_t *)from, BLOCK, TILE};
            if (kind == BFLOAT16) continue;
            weights[side] = (Operand){drawn[0][side], BLOCK, PAIR * TILE};
            for (int i = 0; i < count; i++)
                draw(kind, job->weight, job->panel[side], from + i * size, PAIR * blocks * size,
                     drawn[i][side]);
        }
        int64_t group = 0;
        for (; group + 1 < rows->groups; group += 2) {
            const Operand columns[2] = {{block_at(rows, group, block), BLOCK, TILE},
                                        {block_at(rows, group + 1, block), BLOCK, TILE}};
            for (int side = 0; side < panels; side++) {
                float *const found[2] = {tile_at(sums, group, side), tile_at(sums, group + 1, side)};
                multiply_two(found, !add && block == 0, weights[side], columns, count);
            }
        }
        if (group == rows->groups) continue;
        Operand columns = {block_at(rows, group, block), BLOCK, TILE};
        for (int side = 0; side < panels; side++)
            multiply_blocks(tile_at(sums, group, side), !add && block == 0, weights[side], columns,
                            count);
    }
}

INLINE void pass_kind(int kind, int panels, const Job *job, const Rows *rows, const Sums *sums,
                      int add) {
    pass_many(kind, panels, job, rows, sums, add);
}

/* Whether that was all. */
static int passed_few(const Job *job, const Rows *rows, const Sums *sums, int add) {
    if (rows->rows > FEW) return 0;
    if (rows->rows == 1) pass_few(1, job, rows, sums, add);
    else if (rows->rows == 2) pass_few(2, job, rows, sums, add);
    else if (rows->rows <= 4) pass_few(4, job, rows, sums, add);
    else pass_few(FEW, job, rows, sums, add);
    return 1;
}

#endif

#define PASS(kind)                                                         \
    if (job->panels > 1) pass_kind(kind, 2, job, rows, sums, add);         \
    else pass_kind(kind, 1, job, rows, sums, add);                         \
    break;

/* sums = or += weights * rows, for a job's panels. */
static void pass(const Job *job, const Rows *rows, const Sums *sums, int add) {
    if (passed_few(job, rows, sums, add)) return;
    switch (job->weight->kind) {
    case BFLOAT16: PASS(BFLOAT16)
    case Q8_0: PASS(Q8_0)
    case Q4_0: PASS(Q4_0)
    case Q4_1: PASS(Q4_1)
    default: PASS(INT8)
    }
}

static int64_t jobs_of(int64_t panels) { return (panels + PAIR - 1) / PAIR; }
static int64_t panels_of(const Weight *weight) { return (weight->outs + LANES - 1) / LANES; }

/* So many neighbouring jobs a thread takes at once: while one is drawn, the next is fetched. */
static int run_of(int64_t jobs) {
    int64_t runs = 2 * omp_get_num_threads();
    return (int)((jobs + runs - 1) / runs);
}

static void multiply_job(const Weight *weight, int64_t number, const Rows *rows, const Turned *out,
                         int add) {
    int64_t panel = number * PAIR;
    Job job = {weight, {panel, panel + 1}, panel + 1 < panels_of(weight) ? PAIR : 1};
    Sums sums = {column_at(out, 0, panel * LANES), out->columns * LANES, LANES * LANES};
    pass(&job, rows, &sums, add);
}

void product(const Weight *weight, const Rows *rows, const Turned *out, int add) {
    for (int64_t number = 0; number < jobs_of(panels_of(weight)); number++)
        multiply_job(weight, number, rows, out, add);
}

INLINE int64_t strip_groups(const Rows *rows, int64_t first) {
    return rows->groups - first < STRIP ? rows->groups - first : STRIP;
}

void share_product(const Weight *weight, const Rows *rows, const Turned *out, int add) {
    int64_t jobs = jobs_of(panels_of(weight));
    for (int64_t first = 0; first < rows->groups; first += STRIP) {
        int64_t count = strip_groups(rows, first);
        Rows some = rows_from(rows, first, count);
        Turned found = turned_from(out, first, count);
#pragma omp for schedule(dynamic, run_of(jobs)) nowait
        for (int64_t number = 0; number < jobs; number++)
            multiply_job(weight, number, &some, &found, add);
    }
#pragma omp barrier
}

/* silu(gate) * up of sixteen lanes. */
INLINE __m512 gated_of(__m512 gate, __m512 up) {
    const __m512 turn = _mm512_set1_ps(-1.44269504088896341f), most = _mm512_set1_ps(126.0f);
    __m512 power = two_to_the(_mm512_min_ps(most, _mm512_mul_ps(gate, turn)));
    __m512 under = _mm512_add_ps(_mm512_set1_ps(1.0f), power), share = _mm512_rcp14_ps(under);
    __m512 missed = _mm512_fnmadd_ps(under, share, _mm512_set1_ps(1.0f));
    share = _mm512_fmadd_ps(share, missed, share); /* One step of Newton's. */
    return _mm512_mul_ps(_mm512_mul_ps(gate, share), up);
}

/* A block of gated columns of one group; `panels` 1: its second half is zero. */
static void gate_block(const float *gates, const float *ups, int panels, uint16_t *to) {
    for (int out = 0; out < panels * LANES; out += 2, gates += 2 * LANES, ups += 2 * LANES) {
        __m512 first = gated_of(_mm512_load_ps(gates), _mm512_load_ps(ups));
        __m512 second = gated_of(_mm512_load_ps(gates + LANES), _mm512_load_ps(ups + LANES));
        _mm512_store_si512(to + out * LANES, paired(first, second));
    }
    if (panels < PAIR) memset(to + TILE / 2, 0, TILE);
}

static void gate_job(const Weight *weight, int64_t number, const Rows *rows, const Rows *to) {
    float gates[STRIP][PAIR * TILE / 2] __attribute__((aligned(64)));
    float ups[STRIP][PAIR * TILE / 2] __attribute__((aligned(64)));
    Sums left = {gates[0], PAIR * TILE / 2, TILE / 2}, right = {ups[0], PAIR * TILE / 2, TILE / 2};
    int64_t half = weight->outs / 2 / LANES, panel = number * PAIR;
    int panels = panel + 1 < half ? PAIR : 1;
    Job first = {weight, {panel, panel + 1}, panels};
    Job second = {weight, {half + panel, half + panel + 1}, panels};
    pass(&first, rows, &left, 0);
    pass(&second, rows, &right, 0);
    for (int64_t group = 0; group < rows->groups; group++)
        gate_block(gates[group], ups[group], panels, block_at(to, group, number));
}

void gate(const Weight *weight, const Rows *rows, const Rows *gated) {
    for (int64_t number = 0; number < jobs_of(weight->outs / 2 / LANES); number++)
        gate_job(weight, number, rows, gated);
}

void share_gate(const Weight *weight, const Rows *rows, const Rows *gated) {
    int64_t jobs = jobs_of(weight->outs / 2 / LANES);
    for (int64_t first = 0; first < rows->groups; first += STRIP) {
        int64_t count = strip_groups(rows, first);
        Rows some = rows_from(rows, first, count), found = rows_from(gated, first, count);
#pragma omp for schedule(dynamic, run_of(jobs)) nowait
        for (int64_t number = 0; number < jobs; number++)
            gate_job(weight, number, &some, &found);
    }
#pragma omp barrier
}

void rounded_linear(const Weight *weight, const float *in, float *out, int64_t rows, int add,
                    int threads) {
    char *room = rounded_room(rows_bytes(rows, weight->ins) + turned_bytes(rows, weight->outs));
    Turned found = take_turned(&room, rows, weight->outs);
    Rows given = take_rows(&room, rows, weight->ins);
#pragma omp parallel num_threads(threads)
    {
        shape_tiles(0, HIGH);
        share_round(&given, in, rows, weight->ins);
        if (add) share_turn(&found, out, rows, weight->outs);
        share_product(weight, &given, &found, add);
        share_turn_back(out, &found, rows, weight->outs);
        release_tiles();
    }
}

void rounded_row(const Weight *weight, int64_t out, float *to) {
    uint16_t cells[BLOCK] __attribute__((aligned(64)));
    int64_t blocks = blocks_of(weight->ins), size = block_bytes(weight->kind);
    const uint8_t *from = weight->panels + out / LANES * blocks * size;
    for (int64_t k = 0; k < weight->ins; k += BLOCK, from += size) {
        draw_row(weight, out / LANES, from, (int)(out % LANES), cells);
        for (int64_t i = 0; i < BLOCK && k + i < weight->ins; i++) to[k + i] = from_brain(cells[i]);
    }
}

#else

void rounded_linear(const Weight *weight, const float *in, float *out, int64_t rows, int add,
                    int threads) {
    (void)weight, (void)in, (void)out, (void)rows, (void)add, (void)threads;
}

void rounded_row(const Weight *weight, int64_t out, float *to) {
    (void)weight, (void)out, (void)to;
}

#endif
