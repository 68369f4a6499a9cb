/* Whole layers of the plain form, rounded, in one parallel region: rows stay on their side from the
 * first layer to the last, the residual stream in float32. */
#include "rounded.h"

#ifdef ROUNDED

#include <omp.h>

#define MANY 16 /* groups from which threads share out the rows, not the outs */

/* What a step keeps for its rows, or for some groups of them. */
typedef struct {
    Turned hidden, cosines, sines, mixed;
    Rows normed, attended, gated;
    uint16_t *queries, *answers; /* [token][head * head_dim] bfloat16 */
    const int64_t *places;       /* of the tokens' first cells */
    int64_t rows;
} Room;

/* The norms of a group of rows, rounded. Zhang & Sennrich (2019). */
static void norm_group(const Rows *to, const Turned *from, int64_t group, const float *weight,
                       int64_t width, float epsilon) {
    const float *cells = column_at(from, group, 0);
    __m512 sums[4];
    for (int i = 0; i < 4; i++) sums[i] = _mm512_setzero_ps();
    for (int64_t column = 0; column < width; column += 4)
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            __m512 x = _mm512_load_ps(cells + (column + i) * LANES);
            sums[i] = _mm512_fmadd_ps(x, x, sums[i]);
        }
    __m512 sum = _mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3]));
    __m512 mean = _mm512_div_ps(sum, _mm512_set1_ps((float)width));
    __m512 root = _mm512_sqrt_ps(_mm512_add_ps(mean, _mm512_set1_ps(epsilon)));
    __m512 factor = _mm512_div_ps(_mm512_set1_ps(1.0f), root);
    uint16_t *pairs = block_at(to, group, 0);
    for (int64_t column = 0; column < width; column += 2, pairs += BLOCK, cells += 2 * LANES) {
        __m512 first = _mm512_mul_ps(_mm512_load_ps(cells), factor);
        __m512 second = _mm512_mul_ps(_mm512_load_ps(cells + LANES), factor);
        first = _mm512_mul_ps(first, _mm512_set1_ps(weight[column]));
        second = _mm512_mul_ps(second, _mm512_set1_ps(weight[column + 1]));
        _mm512_store_si512(pairs, paired(first, second));
    }
}

/* Sixteen pairs of columns of sixteen rows to 32 cells of each of `count` rows. */
INLINE void lay_down(__m512i words[HIGH], uint16_t *const *to, int64_t at, int64_t count) {
    turn_words(words);
    for (int64_t i = 0; i < count; i++) _mm512_storeu_si512(to[i] + at, words[i]);
}

/* A head's columns of one group, rounded, as rows from where `to` says; turned by its positions'
 * angles (Su et al., 2021) where there are any. */
static void put_head(const float *cells, const float *cosines, const float *sines, int64_t dim,
                     uint16_t *const *to, int64_t count) {
    int64_t half = dim / 2;
    for (int64_t at = 0; at < half; at += BLOCK) {
        __m512i low[HIGH], high[HIGH];
        for (int i = 0; i < HIGH; i++) {
            __m512 first[2], second[2];
#pragma GCC unroll 2
            for (int side = 0; side < 2; side++) {
                int64_t column = (at + 2 * i + side) * LANES;
                __m512 x = _mm512_load_ps(cells + column);
                __m512 y = _mm512_load_ps(cells + half * LANES + column);
                first[side] = x, second[side] = y;
                if (cosines == NULL) continue;
                __m512 across = _mm512_load_ps(cosines + column), up = _mm512_load_ps(sines + column);
                first[side] = _mm512_fmsub_ps(x, across, _mm512_mul_ps(y, up));
                second[side] = _mm512_fmadd_ps(y, across, _mm512_mul_ps(x, up));
            }
            low[i] = paired(first[0], first[1]);
            high[i] = paired(second[0], second[1]);
        }
        lay_down(low, to, at, count);
        lay_down(high, to, half + at, count);
    }
}

/* A head of a group: queries to their rows, keys and values to the pages. */
static void keep_head(const Store *store, int64_t layer, const Room *room, int64_t group,
                      int64_t head) {
    int64_t dim = store->head_dim, kept = head - store->heads, left = room->rows - group * HIGH;
    int64_t count = left < HIGH ? left : HIGH;
    uint16_t *to[HIGH];
    for (int64_t i = 0; i < count; i++) {
        int64_t row = group * HIGH + i;
        to[i] = room->queries + (row * store->heads + head) * dim;
        if (kept >= 0)
            to[i] = (uint16_t *)store->cells + room->places[row] + layer * store->layer_cells +
                    kept * store->head_cells;
    }
    int turned = kept < store->kv_heads;
    put_head(column_at(&room->mixed, group, head * dim),
             turned ? column_at(&room->cosines, group, 0) : NULL,
             turned ? column_at(&room->sines, group, 0) : NULL, dim, to, count);
}

static void pair_rows(const Room *room, int64_t group, int64_t width) {
    int64_t left = room->rows - group * HIGH;
    pair_group(&room->attended, group, room->answers + group * HIGH * width,
               left < HIGH ? left : HIGH, width);
}

/* Few rows: all threads work at the outs of each product. */
static void share_before(const Layer *layer, int64_t number, const Step *s, const Room *room) {
    int64_t heads = s->store->heads + 2 * s->store->kv_heads, groups = room->hidden.groups;
#pragma omp for schedule(static)
    for (int64_t group = 0; group < groups; group++)
        norm_group(&room->normed, &room->hidden, group, layer->attention_norm, layer->qkv->ins,
                   s->epsilon);
    share_product(layer->qkv, &room->normed, &room->mixed, 0);
#pragma omp for schedule(static)
    for (int64_t job = 0; job < groups * heads; job++)
        keep_head(s->store, number, room, job / heads, job % heads);
}

static void share_after(const Layer *layer, const Step *s, const Room *room) {
    int64_t groups = room->hidden.groups;
#pragma omp for schedule(static)
    for (int64_t group = 0; group < groups; group++) pair_rows(room, group, layer->out->ins);
    share_product(layer->out, &room->attended, &room->hidden, 1);
#pragma omp for schedule(static)
    for (int64_t group = 0; group < groups; group++)
        norm_group(&room->normed, &room->hidden, group, layer->mlp_norm, layer->gate_up->ins,
                   s->epsilon);
    share_gate(layer->gate_up, &room->normed, &room->gated);
    share_product(layer->down, &room->gated, &room->hidden, 1);
}

/* Many rows: each thread has strips of its own, which stay in its caches. */
static void strip_before(const Layer *layer, int64_t number, const Step *s, const Room *room) {
    int64_t heads = s->store->heads + 2 * s->store->kv_heads;
    for (int64_t group = 0; group < room->hidden.groups; group++)
        norm_group(&room->normed, &room->hidden, group, layer->attention_norm, layer->qkv->ins,
                   s->epsilon);
    product(layer->qkv, &room->normed, &room->mixed, 0);
    for (int64_t group = 0; group < room->hidden.groups; group++)
        for (int64_t head = 0; head < heads; head++) keep_head(s->store, number, room, group, head);
}

static void strip_after(const Layer *layer, const Step *s, const Room *room) {
    for (int64_t group = 0; group < room->hidden.groups; group++)
        pair_rows(room, group, layer->out->ins);
    product(layer->out, &room->attended, &room->hidden, 1);
    for (int64_t group = 0; group < room->hidden.groups; group++)
        norm_group(&room->normed, &room->hidden, group, layer->mlp_norm, layer->gate_up->ins,
                   s->epsilon);
    gate(layer->gate_up, &room->normed, &room->gated);
    product(layer->down, &room->gated, &room->hidden, 1);
}

/* The groups of a strip; what is made of them on the way has room for one strip a thread. */
static Room room_of(const Room *all, int64_t number, int64_t strips, int64_t thread,
                    int64_t queries) {
    int64_t first = number * all->hidden.groups / strips;
    int64_t count = (number + 1) * all->hidden.groups / strips - first;
    Room room = {.hidden = turned_from(&all->hidden, first, count),
                 .cosines = turned_from(&all->cosines, first, count),
                 .sines = turned_from(&all->sines, first, count),
                 .mixed = turned_from(&all->mixed, thread * STRIP, count),
                 .normed = rows_from(&all->normed, thread * STRIP, count),
                 .attended = rows_from(&all->attended, thread * STRIP, count),
                 .gated = rows_from(&all->gated, thread * STRIP, count),
                 .queries = all->queries + first * HIGH * queries,
                 .answers = all->answers + first * HIGH * queries,
                 .places = all->places + first * HIGH,
                 .rows = all->rows - first * HIGH};
    return room;
}

static int64_t strips_of(int64_t groups, int64_t threads) {
    if (groups < MANY) return 0;
    return (groups + threads * STRIP - 1) / (threads * STRIP) * threads;
}

/* One thread's part of a layer up to its queries, keys and values. */
static void before(const Layer *layer, int64_t number, const Step *s, const Room *room) {
    int64_t queries = s->store->heads * s->store->head_dim, thread = omp_get_thread_num();
    int64_t strips = strips_of(room->hidden.groups, s->threads);
    if (!strips) share_before(layer, number, s, room);
#pragma omp for schedule(static, 1)
    for (int64_t strip = 0; strip < strips; strip++) {
        Room some = room_of(room, strip, strips, thread, queries);
        strip_before(layer, number, s, &some);
    }
}

static void after(const Layer *layer, const Step *s, const Room *room) {
    int64_t queries = s->store->heads * s->store->head_dim, thread = omp_get_thread_num();
    int64_t strips = strips_of(room->hidden.groups, s->threads);
    if (!strips) share_after(layer, s, room);
#pragma omp for schedule(static, 1) nowait /* A strip's next layer is the same thread's. */
    for (int64_t strip = 0; strip < strips; strip++) {
        Room some = room_of(room, strip, strips, thread, queries);
        strip_after(layer, s, &some);
    }
}

/* The rows that are drawn from, side by side. */
static void share_drawn(const Attention *a, const Room *room, const Room *drawn, int64_t width,
                        int64_t queries) {
#pragma omp for schedule(static)
    for (int64_t i = 0; i < a->drawn_count; i++) {
        int64_t row = a->drawn[4 * i];
        const float *from = column_at(&room->hidden, row / HIGH, 0) + row % HIGH;
        float *to = column_at(&drawn->hidden, i / HIGH, 0) + i % HIGH;
        for (int64_t column = 0; column < width; column++) to[column * LANES] = from[column * LANES];
        memcpy(drawn->answers + i * queries, room->answers + row * queries, (size_t)queries * 2);
    }
}

/* One thread's part of all layers. */
static void run(const Layer *layers, int64_t count, const Step *s, const Room *room,
                const Room *drawn) {
    int64_t half = s->store->head_dim / 2, queries = s->store->heads * s->store->head_dim;
    int64_t width = layers->qkv->ins, whole = s->last ? count - 1 : count;
    const Layer *last = layers + whole;
    const float *angles = NULL;
    share_turn(&room->hidden, s->hidden, s->rows, width);
    for (int64_t number = 0; number < count; number++) {
        const Layer *layer = layers + number;
        if (layer->cosines != angles) {
            angles = layer->cosines;
            share_turn(&room->cosines, layer->cosines, s->rows, half);
            share_turn(&room->sines, layer->sines, s->rows, half);
        }
        before(layer, number, s, room);
        if (number == whole) break;
        share_attention(s->attention, number, layer->window, room->queries, queries, room->answers);
        after(layer, s, room);
    }
#pragma omp barrier
    if (!s->last) {
        share_turn_back(s->hidden, &room->hidden, s->rows, width);
        return;
    }
    Attention few = *s->attention;
    few.tasks = few.drawn, few.task_count = few.drawn_count;
    share_attention(&few, whole, last->window, room->queries, queries, room->answers);
    share_drawn(&few, room, drawn, width, queries);
    after(last, s, drawn);
#pragma omp barrier
    share_turn_back(s->last, &drawn->hidden, drawn->rows, width);
}

/* Room for rows; what is made of `kept` of them on the way. */
static Room take_room(char **at, const Layer *layer, const Store *store, int64_t rows,
                      int64_t kept) {
    int64_t width = layer->qkv->ins, half = store->head_dim / 2, queries = layer->out->ins;
    Room room = {.hidden = take_turned(at, rows, width), .places = store->places, .rows = rows};
    room.cosines = take_turned(at, rows, half);
    room.sines = take_turned(at, rows, half);
    room.mixed = take_turned(at, kept, layer->qkv->outs);
    room.normed = take_rows(at, kept, width);
    room.attended = take_rows(at, kept, queries);
    room.gated = take_rows(at, kept, layer->down->ins);
    room.queries = take_rows(at, rows, queries).cells;
    room.answers = take_rows(at, rows, queries).cells;
    return room;
}

static int64_t room_bytes(const Layer *layer, const Store *store, int64_t rows, int64_t kept) {
    int64_t width = layer->qkv->ins, half = store->head_dim / 2, queries = layer->out->ins;
    return turned_bytes(rows, width) + 2 * turned_bytes(rows, half) + 2 * rows_bytes(rows, queries) +
           turned_bytes(kept, layer->qkv->outs) + rows_bytes(kept, width) +
           rows_bytes(kept, queries) + rows_bytes(kept, layer->down->ins);
}

void rounded_layers(const Layer *layers, int64_t count, const Step *s) {
    int64_t drawn_rows = s->last ? s->attention->drawn_count : 0, rows = s->rows;
    int64_t kept = strips_of(groups_of(rows), s->threads) ? s->threads * STRIP * HIGH : rows;
    int64_t few = strips_of(groups_of(drawn_rows), s->threads) ? s->threads * STRIP * HIGH : drawn_rows;
    char *at = rounded_room(room_bytes(layers, s->store, rows, kept) +
                            room_bytes(layers, s->store, drawn_rows, few));
    Room room = take_room(&at, layers, s->store, rows, kept);
    Room drawn = take_room(&at, layers, s->store, drawn_rows, few);
#pragma omp parallel num_threads((int)s->threads)
    {
        shape_tiles(0, HIGH);
        run(layers, count, s, &room, &drawn);
        release_tiles();
    }
}

#else

void rounded_layers(const Layer *layers, int64_t count, const Step *step) {
    (void)layers, (void)count, (void)step;
}

#endif
