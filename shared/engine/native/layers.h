/* What the library offers, and what it is told of pages, attention and layers. */
#ifndef BATON_LAYERS_H
#define BATON_LAYERS_H

#include "weight.h"

typedef struct {
    void *cells;
    const int64_t *places; /* [token]: first cell of its position in layer 0, head 0, keys */
    int64_t kind, heads, kv_heads, head_dim, head_cells, layer_cells;
} Store;

typedef struct {
    const void *cells;
    const int64_t *tables; /* page numbers of all items, flat */
    const int64_t *tasks;  /* [task][4]: first row, its position, rows, where its table begins */
    const int64_t *drawn;  /* the same for each row that is drawn from, in order */
    int64_t task_count, drawn_count, tokens, kind;
    int64_t heads, kv_heads, head_dim, block_tokens;
    int64_t page_cells, layer_cells;
    int64_t query_stride, window; /* floats from row to row; 0: no window */
    float scale, cap;             /* cap 0: none */
    int64_t rounded;              /* queries and weights, to bfloat16; the pages are that, too */
} Attention;

typedef struct {
    const float *attention_norm, *mlp_norm;
    const Weight *qkv, *out, *gate_up, *down;
    const float *cosines, *sines; /* [token, head_dim / 2] */
    int64_t window;
} Layer;

/* One step through layers of this plain form. `room` holds floats for `rows` rows of each of
 * normed [hidden], mixed [query | key | value], attended [query], and for `together` rows of
 * both [2 ffn] and gated [ffn]. */
typedef struct {
    const Store *store;
    Attention *attention;
    float *hidden, *room;
    float *last; /* rounded: [drawn row][hidden] after all layers, of which the last is run for
                    these rows only; else NULL, and `hidden` has all rows */
    int64_t rows, together, threads;
    int64_t rounded; /* as weights and attention are, for all of the layers */
    float epsilon;
} Step;

/* Whether weights and attention may be `rounded` on this processor. */
EXPORT int64_t baton_rounds(void);
EXPORT void baton_norm(const float *in, const float *weight, float *out, int64_t rows,
                       int64_t width, float epsilon, int64_t threads);
EXPORT void baton_turn(const Store *to, int64_t layer, float *mixed, const float *cosines,
                       const float *sines, int64_t tokens, int64_t threads);
EXPORT void baton_gate(const float *in, float *out, int64_t rows, int64_t width, int64_t threads);
EXPORT void baton_attention(const Attention *a, int64_t layer, const float *queries, float *out,
                            int64_t threads);
EXPORT void baton_linear(const Weight *weight, const float *in, float *out, int64_t rows,
                         int64_t add, int64_t threads);
EXPORT void baton_layers(const Layer *layers, int64_t count, const Step *step);

#endif
