/* Causal attention over paged keys and values, tile by tile, with the running softmax of Milakov
 * & Gimelshein (2018), as in FlashAttention (Dao et al. 2022).
 *
 *   memory [page, layer, k|v, kv_head, token, head_dim]       in strips of sixteen positions,
 *                                                             for all heads of a group
 *
 * A row's sums always go over the same 64 positions in the same order, whether it stands alone, in
 * a chunk, or beside other sequences: so it is the same bits. Positions that it may not see weigh
 * exactly nothing, or are left out. */
#include "rounded.h"

#define TILE_ROWS 96
#define MAX_DIM 256
#define SPAN 64 /* positions at a time */
#define STRIPS (SPAN / LANES)
#define NOTHING (-INFINITY)

typedef struct {
    float keys[MAX_DIM * SPAN], values[SPAN * MAX_DIM]; /* [dim][position], [position][dim] */
    float queries[TILE_ROWS * MAX_DIM], mixed[TILE_ROWS * MAX_DIM];
    float scores[ROWS * SPAN];
    vec total[TILE_ROWS];
    float peak[TILE_ROWS + WIDTH];
    int64_t position[TILE_ROWS];
} __attribute__((aligned(64))) Tile;

INLINE float highest(vec x) {
#ifdef __AVX512F__
    return _mm512_reduce_max_ps((__m512)x);
#else
    vec other = __builtin_shuffle(x, (ivec){4, 5, 6, 7, 0, 1, 2, 3});
    x = larger(x, other);
    other = __builtin_shuffle(x, (ivec){2, 3, 0, 1, 6, 7, 4, 5});
    x = larger(x, other);
    return x[0] > x[1] ? x[0] : x[1];
#endif
}

INLINE float sum_of(vec x) {
    float sum = 0;
    for (int lane = 0; lane < WIDTH; lane++) sum += x[lane];
    return sum;
}

typedef float eight __attribute__((vector_size(32)));
typedef int32_t places __attribute__((vector_size(32)));
typedef float loose_eight __attribute__((vector_size(32), aligned(4), may_alias));

/* to[8][..] = from[8][..] transposed, strides in floats. */
INLINE void transpose_eight(const float *from, int64_t from_stride, float *to, int64_t to_stride) {
    eight r[8], s[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) r[i] = *(const loose_eight *)(from + i * from_stride);
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        s[i] = __builtin_shuffle(r[i], r[i + 1], (places){0, 8, 1, 9, 4, 12, 5, 13});
        s[i + 1] = __builtin_shuffle(r[i], r[i + 1], (places){2, 10, 3, 11, 6, 14, 7, 15});
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        int at = i / 4 * 4 + i % 4 / 2, low = i % 2 == 0;
        r[i] = low ? __builtin_shuffle(s[at], s[at + 2], (places){0, 1, 8, 9, 4, 5, 12, 13})
                   : __builtin_shuffle(s[at], s[at + 2], (places){2, 3, 10, 11, 6, 7, 14, 15});
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        *(loose_eight *)(to + i * to_stride) =
            __builtin_shuffle(r[i], r[i + 4], (places){0, 1, 2, 3, 8, 9, 10, 11});
        *(loose_eight *)(to + (i + 4) * to_stride) =
            __builtin_shuffle(r[i], r[i + 4], (places){4, 5, 6, 7, 12, 13, 14, 15});
    }
}

/* Sixteen positions' keys into their columns of [dim][SPAN]. */
static void transpose_keys(const float *from, float *to, int64_t dim) {
    for (int64_t d = 0; d < dim; d += 8) {
        transpose_eight(from + d, dim, to + d * SPAN, SPAN);
        transpose_eight(from + 8 * dim + d, dim, to + d * SPAN + 8, SPAN);
    }
}

/* Hide what a row may not see of `strips` strips from `base`; the highest score that it sees. */
INLINE float look(const Attention *a, const Tile *tile, int row, float *scores, int64_t base,
                  int strips) {
    ivec lane = {};
    for (int i = 0; i < WIDTH; i++) lane[i] = i;
    int64_t last = tile->position[row] - base;
    int64_t first = a->window ? last - a->window + 1 : 0;
    int32_t begin = first < 0 ? 0 : first > SPAN ? SPAN : (int32_t)first;
    int32_t end = last < SPAN ? (int32_t)last : SPAN;
    int whole = begin == 0 && end >= strips * LANES - 1;
    vec most = all(NOTHING);
    for (int i = 0; i < strips * PARTS; i++) {
        vec score = load(scores + i * WIDTH);
        ivec place = lane + i * WIDTH;
        if (a->cap > 0)
            for (int at = 0; at < WIDTH; at++) score[at] = a->cap * tanhf(score[at] / a->cap);
        if (!whole) score = choose((place <= end) & (place >= begin), score, all(NOTHING));
        if (!whole || a->cap > 0) store(scores + i * WIDTH, score);
        most = larger(score, most);
    }
    return highest(most);
}

/* Turn rows' scores into weights of their running softmax. */
static void weigh(const Attention *a, Tile *tile, int row, int count, int64_t base, int strips) {
    float found[WIDTH], shrink[WIDTH];
    vec before = load(tile->peak + row);
    for (int i = 0; i < WIDTH; i++) found[i] = NOTHING;
    for (int i = 0; i < count; i++)
        found[i] = look(a, tile, row + i, tile->scores + i * SPAN, base, strips);
    vec peak = larger(load(found), before);
    store(shrink, choose(before == all(NOTHING), all(0), exponential(before - peak)));
    for (int i = 0; i < count; i++) {
        float *scores = tile->scores + i * SPAN, *mixed = tile->mixed + (row + i) * a->head_dim;
        vec total = tile->total[row + i];
        if (found[i] > tile->peak[row + i]) {
            for (int64_t d = 0; d < a->head_dim; d += WIDTH)
                store(mixed + d, load(mixed + d) * all(shrink[i]));
            total *= all(shrink[i]);
            tile->peak[row + i] = found[i];
        }
        vec highest_now = all(tile->peak[row + i]);
        for (int at = 0; at < strips * LANES; at += WIDTH) {
            vec score = load(scores + at), weight = exponential(score - highest_now);
            weight = choose(score == all(NOTHING), all(0), weight);
            total += weight;
            store(scores + at, weight);
        }
        tile->total[row + i] = total;
    }
}

/* One row tile against the positions from `base` that it may see. */
static void meet(const Attention *a, Tile *tile, int row, int count, int64_t base, int64_t known,
                 const float *const *values) {
    int64_t dim = a->head_dim, seen = tile->position[row + count - 1] - base + 1;
    if (seen > known) seen = known;
    if (seen <= 0) return;
    int strips = (int)((seen + LANES - 1) / LANES), whole = (int)dim;
    const float *keys[1];
    for (int at = 0; at < strips * LANES; at += COLUMNS) {
        int columns = strips * LANES - at < COLUMNS ? WIDTH : COLUMNS;
        keys[0] = tile->keys + at;
        Product product = {tile->scores + at, tile->queries + row * dim, keys, SPAN, dim, SPAN,
                           1, whole, whole, 1};
        multiply_tile(count, columns, &product);
    }
    weigh(a, tile, row, count, base, strips);
    int left = (int)seen - (strips - 1) * LANES;
    for (int64_t d = 0; d < dim; d += COLUMNS) {
        const float *columns[STRIPS];
        for (int strip = 0; strip < strips; strip++) columns[strip] = values[strip] + d;
        Product product = {tile->mixed + row * dim + d, tile->scores, columns, dim, SPAN, dim,
                           strips, LANES, left, 0};
        multiply_tile(count, dim - d < COLUMNS ? WIDTH : COLUMNS, &product);
    }
}

static void begin(const Attention *a, Tile *tile, const int64_t *task, int64_t kv_head,
                  const float *queries) {
    int64_t group = a->heads / a->kv_heads, dim = a->head_dim;
    for (int64_t row = 0; row < task[2] * group; row++) {
        int64_t token = row / group, head = kv_head * group + row % group;
        const float *from = queries + (task[0] + token) * a->query_stride + head * dim;
        for (int64_t d = 0; d < dim; d++) tile->queries[row * dim + d] = from[d] * a->scale;
        tile->position[row] = task[1] + token;
        tile->peak[row] = NOTHING;
        tile->total[row] = all(0);
    }
    memset(tile->mixed, 0, task[2] * group * dim * sizeof(float));
}

static void finish(const Attention *a, const Tile *tile, const int64_t *task, int64_t kv_head,
                   float *out) {
    int64_t group = a->heads / a->kv_heads, dim = a->head_dim;
    for (int64_t row = 0; row < task[2] * group; row++) {
        int64_t head = kv_head * group + row % group;
        float *to = out + ((task[0] + row / group) * a->heads + head) * dim;
        float total = sum_of(tile->total[row]);
        for (int64_t d = 0; d < dim; d++) to[d] = tile->mixed[row * dim + d] / total;
    }
}

/* Where a key head's sixteen keys from position `base` lie. */
static const char *keys_at(const Attention *a, int64_t layer, const int64_t *task,
                           int64_t kv_head, int64_t base) {
    int64_t block = a->block_tokens, page = a->tables[task[3] + base / block];
    int64_t cell = page * a->page_cells + layer * a->layer_cells +
                   (kv_head * block + base % block) * a->head_dim;
    return (const char *)a->cells + cell * (a->kind == FLOAT32 ? 4 : 2);
}

/* Pages lie far apart, where no processor looks ahead by itself. */
INLINE void fetch(const char *from, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(from + at);
}

/* The keys of `strips` strips from `base`, turned round, and where their values are. */
static void gather(const Attention *a, Tile *tile, int64_t layer, const int64_t *task,
                   int64_t kv_head, int64_t base, int strips, int64_t last, const float **values) {
    int64_t dim = a->head_dim, bytes = a->kind == FLOAT32 ? 4 : 2;
    int64_t to_values = a->kv_heads * a->block_tokens * dim * bytes;
    for (int strip = 0; strip < strips; strip++, base += LANES) {
        const char *keys = keys_at(a, layer, task, kv_head, base);
        if (base + LANES <= last) {
            const char *next = keys_at(a, layer, task, kv_head, base + LANES);
            fetch(next, LANES * dim * bytes);
            fetch(next + to_values, LANES * dim * bytes);
        }
        if (a->kind == FLOAT32) {
            transpose_keys((const float *)keys, tile->keys + strip * LANES, dim);
            values[strip] = (const float *)(keys + to_values);
            continue;
        }
        float wide[LANES * MAX_DIM], *kept = tile->values + strip * LANES * dim;
        widen(wide, keys, (int)a->kind, LANES * dim);
        transpose_keys(wide, tile->keys + strip * LANES, dim);
        widen(kept, keys + to_values, (int)a->kind, LANES * dim);
        values[strip] = kept;
    }
}

static void run(const Attention *a, int64_t layer, const int64_t *task, int64_t kv_head,
                const float *queries, float *out) {
    Tile tile;
    int64_t last = task[1] + task[2] - 1;
    int64_t from = a->window && task[1] >= a->window ? task[1] - a->window + 1 : 0;
    int rows = (int)(task[2] * (a->heads / a->kv_heads)), high = tile_rows(rows);
    begin(a, &tile, task, kv_head, queries);
    for (int64_t base = from / SPAN * SPAN; base <= last; base += SPAN) {
        const float *values[STRIPS];
        int64_t known = last - base + 1 < SPAN ? last - base + 1 : SPAN;
        int strips = (int)((known + LANES - 1) / LANES);
        gather(a, &tile, layer, task, kv_head, base, strips, last, values);
        for (int row = 0; row < rows; row += high)
            meet(a, &tile, row, rows - row < high ? rows - row : high, base, known, values);
    }
    finish(a, &tile, task, kv_head, out);
}

/* queries [row, head, dim] with `query_stride` floats from row to row; out [row, head, dim]. */
EXPORT void baton_attention(const Attention *a, int64_t layer, const float *queries, float *out,
                            int64_t threads) {
    if (a->rounded) {
        rounded_attention(a, layer, queries, out, a->tokens, (int)threads);
        return;
    }
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t job = 0; job < a->task_count * a->kv_heads; job++)
        run(a, layer, a->tasks + job / a->kv_heads * 4, job % a->kv_heads, queries, out);
}
