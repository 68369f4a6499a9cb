/* Whole layers in one call: what a step of few rows would otherwise spend between the operations. */
#include "rounded.h"

/* hidden += down (silu(gate) * up) of its norm, a cacheful of rows at a time. */
static void run_mlp(const Layer *layer, const Step *s, float *normed, float *both, float *gated) {
    int64_t width = layer->down->ins, outs = layer->down->outs;
    for (int64_t first = 0; first < s->rows; first += s->together) {
        int64_t rows = s->rows - first < s->together ? s->rows - first : s->together;
        float *hidden = s->hidden + first * outs;
        baton_norm(hidden, layer->mlp_norm, normed, rows, outs, s->epsilon, s->threads);
        baton_linear(layer->gate_up, normed, both, rows, 0, s->threads);
        baton_gate(both, gated, rows, width, s->threads);
        baton_linear(layer->down, gated, hidden, rows, 1, s->threads);
    }
}

/* The first `count` layers of a model over hidden [row, hidden], in place. */
EXPORT void baton_layers(const Layer *layers, int64_t count, const Step *s) {
    Attention *a = s->attention;
    if (s->rounded) {
        rounded_layers(layers, count, s);
        return;
    }
    for (int64_t number = 0; number < count; number++) {
        const Layer *layer = layers + number;
        int64_t width = layer->qkv->ins;
        float *normed = s->room, *mixed = normed + s->rows * width;
        float *attended = mixed + s->rows * layer->qkv->outs;
        float *both = attended + s->rows * layer->out->ins;
        float *gated = both + s->together * layer->gate_up->outs;
        baton_norm(s->hidden, layer->attention_norm, normed, s->rows, width, s->epsilon, s->threads);
        baton_linear(layer->qkv, normed, mixed, s->rows, 0, s->threads);
        baton_turn(s->store, number, mixed, layer->cosines, layer->sines, s->rows, s->threads);
        a->window = layer->window;
        a->query_stride = layer->qkv->outs;
        baton_attention(a, number, mixed, attended, s->threads);
        baton_linear(layer->out, attended, s->hidden, s->rows, 1, s->threads);
        run_mlp(layer, s, normed, both, gated);
    }
}
