/* What stands between the products: norms, rotary positions with the store to the pages, gates. */
#include "layers.h"

/* out = in / rms(in) * weight for each row of `width`. Zhang & Sennrich (2019). */
EXPORT void baton_norm(const float *in, const float *weight, float *out, int64_t rows,
                       int64_t width, float epsilon, int64_t threads) {
#pragma omp parallel for schedule(static) if (rows > 32) num_threads(threads)
    for (int64_t row = 0; row < rows; row++) {
        const float *from = in + row * width;
        vec lanes = all(0);
        float sum = 0;
        int64_t i = 0;
        for (; i + WIDTH <= width; i += WIDTH) lanes += load(from + i) * load(from + i);
        for (int lane = 0; lane < WIDTH; lane++) sum += lanes[lane];
        for (; i < width; i++) sum += from[i] * from[i];
        float factor = 1.0f / sqrtf(sum / (float)width + epsilon);
        float *to = out + row * width;
        for (i = 0; i + WIDTH <= width; i += WIDTH)
            store(to + i, load(from + i) * all(factor) * load(weight + i));
        for (; i < width; i++) to[i] = from[i] * factor * weight[i];
    }
}

INLINE void turn_head(float *first, float *second, const float *cosine, const float *sine,
                      int64_t half) {
    int64_t i = 0;
    for (; i + WIDTH <= half; i += WIDTH) {
        vec left = load(first + i), right = load(second + i);
        vec across = load(cosine + i), up = load(sine + i);
        store(first + i, left * across - right * up);
        store(second + i, right * across + left * up);
    }
    for (; i < half; i++) {
        float left = first[i] * cosine[i] - second[i] * sine[i];
        second[i] = second[i] * cosine[i] + first[i] * sine[i];
        first[i] = left;
    }
}

/* mixed [token, query | key | value heads, head_dim]: rotate queries and keys in place by
 * cosines and sines [token, head_dim / 2], pairs (i, i + half), and store keys and values. */
EXPORT void baton_turn(const Store *to, int64_t layer, float *mixed, const float *cosines,
                       const float *sines, int64_t tokens, int64_t threads) {
    int64_t dim = to->head_dim, half = dim / 2, turned = to->heads + to->kv_heads;
    int64_t all_heads = to->heads + 2 * to->kv_heads, bytes = to->kind == FLOAT32 ? 4 : 2;
#pragma omp parallel for schedule(static) if (tokens > 16) num_threads(threads)
    for (int64_t token = 0; token < tokens; token++) {
        const float *cosine = cosines + token * half, *sine = sines + token * half;
        for (int64_t head = 0; head < all_heads; head++) {
            float *first = mixed + (token * all_heads + head) * dim, *second = first + half;
            if (head < turned) turn_head(first, second, cosine, sine, half);
            if (head < to->heads) continue;
            int64_t cell = to->places[token] + layer * to->layer_cells +
                           (head - to->heads) * to->head_cells;
            narrow((char *)to->cells + cell * bytes, first, (int)to->kind, dim);
        }
    }
}

/* out [row, width] = silu(gate) * up, both halves of in [row, 2 width]. Shazeer (2020). */
EXPORT void baton_gate(const float *in, float *out, int64_t rows, int64_t width,
                       int64_t threads) {
#pragma omp parallel for schedule(static) if (rows > 8) num_threads(threads)
    for (int64_t row = 0; row < rows; row++) {
        const float *gate = in + row * 2 * width, *up = gate + width;
        int64_t i = 0;
        for (; i + WIDTH <= width; i += WIDTH) {
            vec value = load(gate + i);
            vec size = choose(value < all(0), value, -value);
            vec small = exponential(size);
            vec share = choose(value < all(0), small, all(1)) / (all(1) + small);
            store(out + row * width + i, value * share * load(up + i));
        }
        for (; i < width; i++) out[row * width + i] = gate[i] / (1 + expf(-gate[i])) * up[i];
    }
}
