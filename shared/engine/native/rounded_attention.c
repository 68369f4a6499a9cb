/* Causal attention in tiles over bfloat16 pages: scores and sums stand on their side, so that
 * a vector holds one position's scores of sixteen rows, and the softmax never sums across lanes.
 *
 *   scores [position][row] = keys [position][dim] * queries [dim][row]      keys as the page has them
 *   mixed  [dim][row]     += values [dim][position] * weights [position][row]
 *
 * Queries and weights are rounded to bfloat16; scores, the running softmax (Milakov & Gimelshein,
 * 2018) and all sums are float32. A row's sums go over spans of 64 positions from 0 in order,
 * wherever it stands; positions that it may not see weigh exactly nothing. */
#include "rounded_desk.h"

#ifdef ROUNDED

/* A task's queries, turned; rows that fill up the last group are zero. */
static void begin(const Attention *a, Desk *desk, const int64_t *task, int64_t kv_head,
                  const uint16_t *queries, int64_t stride) {
    int64_t group = a->heads / a->kv_heads, dim = a->head_dim, rows = task[2] * group;
    for (int64_t first = 0; first < rows; first += LANES) {
        int64_t at = first / LANES;
        for (int64_t block = 0; block < dim / BLOCK; block++) {
            __m512i words[16];
            for (int64_t lane = 0; lane < LANES; lane++) {
                int64_t row = first + lane, head = kv_head * group + row % group;
                const uint16_t *from =
                    queries + (task[0] + row / group) * stride + head * dim + block * BLOCK;
                words[lane] = row < rows ? _mm512_loadu_si512(from) : _mm512_setzero_si512();
            }
            turn_words(words);
            for (int i = 0; i < 16; i++)
                _mm512_store_si512(queries_of(desk, at) + block * TILE + i * BLOCK, words[i]);
        }
        for (int64_t lane = 0; lane < LANES; lane++) {
            int64_t row = first + lane < rows ? first + lane : rows - 1;
            desk->position[at][lane] = (int32_t)(task[1] + row / group);
            desk->peak[at][lane] = FLOOR;
        }
        desk->most[at] = desk->position[at][LANES - 1];
        memset(mixed_of(desk, at), 0, (size_t)dim * LANES * sizeof(float));
        memset(desk->total[at], 0, sizeof desk->total[at]);
    }
    begin_few(desk, rows);
}

/* A head's sixteen positions from `base`: keys; the values are `kv_heads` strips further. */
static const uint16_t *strip_at(const Attention *a, int64_t layer, const int64_t *task,
                                int64_t kv_head, int64_t base) {
    int64_t block = a->block_tokens, page = a->tables[task[3] + base / block];
    return (const uint16_t *)a->cells + page * a->page_cells + layer * a->layer_cells +
           (kv_head * block + base % block) * a->head_dim;
}

/* 32 positions' values of all dims turned to [dim][position], or for few rows in pairs only:
 * [pair of positions][dim][2]. Zero from `known` on, whatever the page holds there. */
static void turn_values(const uint16_t *const strips[2], int64_t known, int64_t dim, int few,
                        uint16_t (*to)[TILE]) {
    const __m512i order = (__m512i)(short __attribute__((vector_size(64)))){
        0, 16, 1, 17, 2, 18, 3, 19, 4,  20, 5,  21, 6,  22, 7,  23,
        8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    for (int64_t d = 0; d < dim; d += HIGH, to++) {
        __m512i words[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            const uint16_t *from = strips[i / 8] + i % 8 * 2 * dim + d;
            __m256i even = _mm256_setzero_si256(), odd = even;
            if (2 * i < known) even = _mm256_loadu_si256((const __m256i *)from);
            if (2 * i + 1 < known) odd = _mm256_loadu_si256((const __m256i *)(from + dim));
            words[i] = _mm512_inserti64x4(_mm512_castsi256_si512(even), odd, 1);
            words[i] = _mm512_permutexvar_epi16(order, words[i]);
        }
        if (!few) turn_words(words);
        for (int i = 0; i < 16; i++) _mm512_store_si512(*to + i * BLOCK, words[i]);
    }
}

/* Pages lie far apart, where no processor looks ahead by itself. */
INLINE void fetch(const uint16_t *from, int64_t cells) {
    for (int64_t at = 0; at < cells; at += BLOCK) __builtin_prefetch(from + at, 0, 1);
}

/* A span's keys and values from `base`, as far as there are any. */
static void fetch_span(const Attention *a, int64_t layer, const int64_t *task, int64_t kv_head,
                       int64_t base, int64_t last) {
    int64_t to_values = a->kv_heads * a->block_tokens * a->head_dim;
    for (int64_t at = base; at <= last && at < base + SPAN; at += HIGH) {
        const uint16_t *keys = strip_at(a, layer, task, kv_head, at);
        fetch(keys, HIGH * a->head_dim);
        fetch(keys + to_values, HIGH * a->head_dim);
    }
}

/* The span's keys and values; `known` of its positions exist. */
static void gather(const Attention *a, Desk *desk, int64_t layer, const int64_t *task,
                   int64_t kv_head, int64_t base, int64_t known, int64_t last) {
    int64_t dim = a->head_dim, to_values = a->kv_heads * a->block_tokens * dim;
    const uint16_t *values[STRIPS];
    int strips = (int)((known + HIGH - 1) / HIGH);
    for (int strip = 0; strip < STRIPS; strip++) {
        int64_t at = base + (strip < strips ? strip : 0) * HIGH;
        desk->keys[strip] = strip_at(a, layer, task, kv_head, at);
        values[strip] = desk->keys[strip] + to_values;
    }
    fetch_span(a, layer, task, kv_head, base + SPAN, last);
    for (int pair = 0; pair * BLOCK < known; pair++)
        turn_values(values + 2 * pair, known - pair * BLOCK, dim, few_rows(desk),
                    desk->values[pair]);
}

/* How many of the span's strips a group sees. */
INLINE int seen_strips(const Desk *desk, int group, int64_t base) {
    int64_t seen = desk->most[group] - base + 1;
    return seen <= 0 ? 0 : seen >= SPAN ? STRIPS : (int)((seen + HIGH - 1) / HIGH);
}

/* Scale the scores of `count` positions, cap and hide them as the rules say. */
static void hide(const Attention *a, const Desk *desk, int group, int64_t base, int count,
                 float (*scores)[LANES]) {
    __m512i place = _mm512_load_si512(desk->position[group]);
    __m512i first = _mm512_set1_epi32(0);
    if (desk->window) first = _mm512_sub_epi32(place, _mm512_set1_epi32((int)desk->window - 1));
    for (int at = 0; at < count; at++) {
        __m512i here = _mm512_set1_epi32((int)base + at);
        __mmask16 shown = _mm512_cmple_epi32_mask(here, place) & _mm512_cmpge_epi32_mask(here, first);
        if (a->cap > 0)
            for (int lane = 0; lane < LANES; lane++)
                scores[at][lane] = a->cap / a->scale * tanhf(scores[at][lane] * a->scale / a->cap);
        __m512 score = _mm512_load_ps(scores[at]);
        _mm512_store_ps(scores[at], _mm512_mask_blend_ps(shown, _mm512_set1_ps(-INFINITY), score));
    }
}

/* A row's peak follows its scores only where they rise far above it: until then weights may be up
 * to 2^RISE, and nothing is scaled again (Dao et al.'s FlashAttention-4 does so). */
INLINE __m512 peak_of(Desk *desk, int group, __m512 found) {
    __m512 before = _mm512_load_ps(desk->peak[group]);
    __m512 limit = _mm512_add_ps(before, _mm512_set1_ps(RISE));
    __mmask16 rose = _mm512_cmp_ps_mask(found, limit, _CMP_GT_OQ);
    if (!rose) return before;
    __m512 peak = _mm512_mask_mov_ps(before, rose, found);
    __m512 factor = two_to_the(_mm512_sub_ps(before, peak));
    float *mixed = mixed_of(desk, group), *total = desk->total[group][0];
    for (int part = 0; part < 4; part++, total += LANES)
        _mm512_store_ps(total, _mm512_mul_ps(_mm512_load_ps(total), factor));
    if (few_rows(desk)) scale_few(desk, factor);
    else
        for (int64_t d = 0; d < desk->dim; d++, mixed += LANES)
            _mm512_store_ps(mixed, _mm512_mul_ps(_mm512_load_ps(mixed), factor));
    _mm512_store_ps(desk->peak[group], peak);
    return peak;
}

/* Hide, find the peak. */
INLINE __m512 look(const Attention *a, Desk *desk, int group, int64_t base, int strips) {
    float (*scores)[LANES] = desk->scores[group % 2];
    int count = strips * HIGH;
    if (a->cap > 0 || desk->window || base + count - 1 > desk->position[group][0])
        hide(a, desk, group, base, count, scores);
    __m512 most[4];
    for (int i = 0; i < 4; i++) most[i] = _mm512_set1_ps(-INFINITY);
    for (int at = 0; at < count; at += 4)
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            most[i] = _mm512_max_ps(_mm512_load_ps(scores[at + i]), most[i]);
    __m512 found = _mm512_max_ps(_mm512_max_ps(most[0], most[1]), _mm512_max_ps(most[2], most[3]));
    return peak_of(desk, group, _mm512_mul_ps(found, _mm512_set1_ps(a->scale * LOG2_E)));
}

/* Scores of positions `at` to `end` to the weights of the running softmax, rounded, in pairs. */
INLINE void weigh(const Attention *a, Desk *desk, int group, int at, int end, __m512 peak) {
    const float (*scores)[LANES] = (const float (*)[LANES])desk->scores[group % 2];
    __m512 scale = _mm512_set1_ps(a->scale * LOG2_E), total[4];
    for (int i = 0; i < 4; i++) total[i] = _mm512_load_ps(desk->total[group][i]);
    for (; at < end; at += 4) {
        __m512 weight[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            weight[i] = two_to_the(_mm512_fmsub_ps(_mm512_load_ps(scores[at + i]), scale, peak));
            total[i] = _mm512_add_ps(total[i], weight[i]);
        }
        uint16_t *to = desk->weights[group % 2][at / BLOCK] + at % BLOCK / 2 * BLOCK;
        _mm512_store_si512(to, paired(weight[0], weight[1]));
        _mm512_store_si512(to + BLOCK, paired(weight[2], weight[3]));
    }
    for (int i = 0; i < 4; i++) _mm512_store_ps(desk->total[group][i], total[i]);
}

static void mix_rest(Desk *desk, int group, int strips) {
    for (int64_t d = SPAN; d < desk->dim; d += SPAN) {
        begin_mix(desk, group, strips, d);
        end_mix(desk, group, d);
    }
}

/* One span for the groups that see it. While the weights of one are computed, the tiles work at the
 * scores of the next and the sums of the last; no store waits for them in between. */
static void span(const Attention *a, Desk *desk, int first, int groups, int64_t base) {
    int before = 0, strips = seen_strips(desk, first, base);
    begin_scores(desk, first, strips);
    store_tiles(desk->scores[first % 2][0]);
    for (int group = first; group < groups; group++) {
        int next = group + 1 < groups ? seen_strips(desk, group + 1, base) : 0;
        int half = strips > 1 ? 2 * HIGH : HIGH, count = strips * HIGH;
        if (next) begin_scores(desk, group + 1, next);
        __m512 peak = look(a, desk, group, base, strips);
        weigh(a, desk, group, 0, half, peak);
        if (next) store_tiles(desk->scores[(group + 1) % 2][0]);
        if (before) begin_mix(desk, group - 1, before, 0);
        weigh(a, desk, group, half, count, peak);
        if (strips % 2) memset(desk->weights[group % 2][strips / 2] + TILE / 2, 0, TILE);
        if (before) {
            end_mix(desk, group - 1, 0);
            mix_rest(desk, group - 1, before);
        }
        before = strips;
        strips = next;
    }
    begin_mix(desk, groups - 1, before, 0);
    end_mix(desk, groups - 1, 0);
    mix_rest(desk, groups - 1, before);
}

/* Rows back as they came. */
static void finish(const Attention *a, Desk *desk, const int64_t *task, int64_t kv_head,
                   uint16_t *out) {
    int64_t group = a->heads / a->kv_heads, dim = a->head_dim, rows = task[2] * group;
    end_few(desk);
    for (int64_t first = 0; first < rows; first += LANES) {
        const float (*parts)[LANES] = desk->total[first / LANES];
        __m512 total = _mm512_add_ps(_mm512_add_ps(_mm512_load_ps(parts[0]), _mm512_load_ps(parts[1])),
                                     _mm512_add_ps(_mm512_load_ps(parts[2]), _mm512_load_ps(parts[3])));
        __m512 share = _mm512_div_ps(_mm512_set1_ps(1.0f), total);
        for (int64_t d = 0; d < dim; d += BLOCK) {
            __m512i words[HIGH];
            for (int i = 0; i < HIGH; i++) {
                const float *mixed = mixed_of(desk, first / LANES) + (d + 2 * i) * LANES;
                words[i] = paired(_mm512_mul_ps(_mm512_load_ps(mixed), share),
                                  _mm512_mul_ps(_mm512_load_ps(mixed + LANES), share));
            }
            turn_words(words);
            for (int64_t row = first; row < rows && row < first + LANES; row++) {
                int64_t head = kv_head * group + row % group, token = task[0] + row / group;
                _mm512_storeu_si512(out + (token * a->heads + head) * dim + d, words[row - first]);
            }
        }
    }
}

static void run(const Attention *a, int64_t layer, int64_t window, const int64_t *task,
                int64_t kv_head, const uint16_t *queries, int64_t stride, uint16_t *out) {
    Desk desk;
    int64_t last = task[1] + task[2] - 1, rows = task[2] * (a->heads / a->kv_heads);
    int64_t from = window && task[1] >= window ? task[1] - window + 1 : 0;
    int groups = (int)groups_of(rows);
    desk.window = window;
    desk.dim = a->head_dim;
    begin(a, &desk, task, kv_head, queries, stride);
    if (kv_head + 1 < a->kv_heads) /* What this thread is likely to do next. */
        fetch_span(a, layer, task, kv_head + 1, from / SPAN * SPAN, last);
    for (int64_t base = from / SPAN * SPAN; base <= last; base += SPAN) {
        int64_t known = last - base + 1 < SPAN ? last - base + 1 : SPAN;
        int first = 0;
        gather(a, &desk, layer, task, kv_head, base, known, last);
        while (!seen_strips(&desk, first, base)) first++;
        span(a, &desk, first, groups, base);
    }
    finish(a, &desk, task, kv_head, out);
}

void share_attention(const Attention *a, int64_t layer, int64_t window, const uint16_t *queries,
                     int64_t stride, uint16_t *out) {
    /* The heads of a single row together: they lie side by side. The longest tasks come first. */
    int together = a->task_count && a->tasks[2] == 1 ? (int)a->kv_heads : 1;
#pragma omp for schedule(dynamic, together)
    for (int64_t job = 0; job < a->task_count * a->kv_heads; job++)
        run(a, layer, window, a->tasks + job / a->kv_heads * 4, job % a->kv_heads, queries, stride,
            out);
}

void rounded_attention(const Attention *a, int64_t layer, const float *queries, float *out,
                       int64_t tokens, int threads) {
    int64_t width = a->heads * a->head_dim, cells = tokens * width;
    uint16_t *given = (uint16_t *)rounded_room(2 * cells * (int64_t)sizeof(uint16_t));
    uint16_t *found = given + cells;
#pragma omp parallel num_threads(threads)
    {
        shape_tiles(0, HIGH);
#pragma omp for schedule(static)
        for (int64_t token = 0; token < tokens; token++)
            for (int64_t i = 0; i < width; i += BLOCK) {
                const float *from = queries + token * a->query_stride + i;
                _mm512_storeu_si512(given + token * width + i,
                                    rounded(_mm512_loadu_ps(from), _mm512_loadu_ps(from + LANES)));
            }
        share_attention(a, layer, a->window, given, width, found);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < cells; i += LANES) {
            __m256i some = _mm256_loadu_si256((const __m256i *)(found + i));
            __m512i wide = _mm512_slli_epi32(_mm512_cvtepu16_epi32(some), 16);
            _mm512_storeu_si512(out + i, wide);
        }
        release_tiles();
    }
}

#else

void rounded_attention(const Attention *a, int64_t layer, const float *queries, float *out,
                       int64_t tokens, int threads) {
    (void)a, (void)layer, (void)queries, (void)out, (void)tokens, (void)threads;
}

#endif
