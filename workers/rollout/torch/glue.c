/* What stands between the matrix products of a decode step, for bfloat16 on a CPU: one pass over memory each.
   Built and checked against plain torch by native.py. */

#include "numbers.h"

#define WORTH_SHARING 262144 /* numbers: below, waking a sleeping thread takes longer than the work */

/* out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight */
void rms_norm(const bf16 *x, const bf16 *weight, bf16 *out, int64_t rows, int64_t width, float eps) {
#pragma omp parallel for schedule(static) if (rows * width > WORTH_SHARING)
    for (int64_t r = 0; r < rows; r++) {
        const bf16 *in = x + r * width;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < width; i++) sum += widen(in[i]) * widen(in[i]);
        float scale = 1.0f / sqrtf(sum / (float)width + eps);
#pragma omp simd
        for (int64_t i = 0; i < width; i++) out[r * width + i] = narrow(widen(in[i]) * scale * widen(weight[i]));
    }
}

/* out[r] = silu(gate[r]) * up[r]; a row of x is gate, then up */
void silu_mul(const bf16 *x, bf16 *out, int64_t rows, int64_t width) {
#pragma omp parallel for schedule(static) if (rows * width > WORTH_SHARING)
    for (int64_t r = 0; r < rows; r++) {
        const bf16 *gate = x + 2 * r * width, *up = gate + width;
#pragma omp simd
        for (int64_t i = 0; i < width; i++) {
            float value = widen(gate[i]);
            out[r * width + i] = narrow(value / (1.0f + exponential(-value)) * widen(up[i]));
        }
    }
}

static inline void rotate(const bf16 *x, const bf16 *cosine, const bf16 *sine, float scale, float *out, int64_t dim) {
    int64_t half = dim / 2;
    for (int64_t d = 0; d < half; d++) {
        out[d] = (widen(x[d]) * widen(cosine[d]) + widen(x[d + half]) * widen(sine[d])) * scale;
        out[d + half] = (widen(x[d + half]) * widen(cosine[d + half]) + widen(x[d]) * widen(sine[d + half])) * scale;
    }
}

/* Softmax in place. */
static inline void normalise(float *row, int64_t span) {
    float most = row[0], total = 0;
#pragma omp simd reduction(max : most)
    for (int64_t p = 1; p < span; p++) most = row[p] > most ? row[p] : most;
#pragma omp simd reduction(+ : total)
    for (int64_t p = 0; p < span; p++) {
        row[p] = exponential(row[p] - most);
        total += row[p];
    }
    float inverse = 1.0f / total;
    for (int64_t p = 0; p < span; p++) row[p] *= inverse;
}

#define LINE 32 /* numbers a cache line holds */
#define TOGETHER 4 /* query heads whose sums stay in registers */

/* One slot and one kv head: its key and value are written at `position`, its `group` query heads read 0..position.
   keys, values [room, dim]. Memory is the limit here, so what is read next is fetched while the last is worked on. */
static inline __attribute__((always_inline)) void attend_one(
    const bf16 *query, const bf16 *key, const bf16 *value, const bf16 *cosine, const bf16 *sine, bf16 *keys, bf16 *values,
    bf16 *out, int64_t position, int64_t room, int64_t group, int64_t dim, float scale, float *scratch) {
    int64_t span = position + 1;
    const bf16 *next = keys + room * dim; /* of the next head, which the same thread takes next */
    float *rotated = scratch, *turned = scratch + group * dim, *scores = turned + dim;
    rotate(key, cosine, sine, 1.0f, turned, dim);
    for (int64_t d = 0; d < dim; d++) keys[position * dim + d] = narrow(turned[d]);
    memcpy(values + position * dim, value, dim * sizeof(bf16));
    for (int64_t g = 0; g < group; g++) rotate(query + g * dim, cosine, sine, scale, rotated + g * dim, dim);
    /* Every key and value is read and widened once for all query heads of its head. */
    for (int64_t p = 0; p < span; p++) {
        floats wide[MOST_DIM / LANES];
#pragma GCC unroll 4
        for (int64_t d = 0; d < dim; d += LANES) wide[d / LANES] = load(keys + p * dim + d);
        for (int64_t d = 0; d < dim; d += LINE) __builtin_prefetch(values + p * dim + d); /* wanted right after the scores */
#pragma GCC unroll 4
        for (int64_t g = 0; g < group; g++) {
            floats sum = {0};
#pragma GCC unroll 4
            for (int64_t d = 0; d < dim; d += LANES) {
                floats part;
                memcpy(&part, rotated + g * dim + d, sizeof part);
                sum += part * wide[d / LANES];
            }
            scores[g * span + p] = total_of(sum);
        }
    }
    for (int64_t g = 0; g < group; g++) normalise(scores + g * span, span);
    for (int64_t first = 0; first < group; first += TOGETHER) {
        int64_t count = group - first < TOGETHER ? group - first : TOGETHER;
        floats mixed[TOGETHER][MOST_DIM / LANES] = {{{0}}};
        for (int64_t p = 0; p < span; p++) {
            for (int64_t d = 0; d < dim; d += LINE) __builtin_prefetch(next + p * dim + d);
#pragma GCC unroll 4
            for (int64_t d = 0; d < dim; d += LANES) {
                floats wide = load(values + p * dim + d);
#pragma GCC unroll 4
                for (int64_t g = 0; g < count; g++) mixed[g][d / LANES] += scores[(first + g) * span + p] * wide;
            }
        }
        for (int64_t g = 0; g < count; g++)
            for (int64_t d = 0; d < dim; d++) out[(first + g) * dim + d] = narrow(mixed[g][d / LANES][d % LANES]);
    }
}

/* qkv [n, heads + 2 kv, dim]; cosine, sine [n, dim]; cache [2, slots, kv, room, dim]; out [n, heads, dim].
   Returns 1 where memory ran out. */
int attend(const bf16 *qkv, const bf16 *cosine, const bf16 *sine, bf16 *cache, const int64_t *positions, bf16 *out, int64_t n,
           int64_t heads, int64_t kv, int64_t dim, int64_t slots, int64_t room, int64_t first) {
    int64_t group = heads / kv, failed = 0;
    float scale = 1.0f / sqrtf((float)dim);
#pragma omp parallel for schedule(dynamic, 8) reduction(| : failed)
    for (int64_t task = 0; task < n * kv; task++) {
        int64_t row = task / kv, head = task % kv, position = positions[row];
        float *scratch = malloc(sizeof(float) * (group * (dim + position + 1) + dim));
        if (!scratch) {
            failed |= 1;
            continue;
        }
        const bf16 *start = qkv + row * (heads + 2 * kv) * dim;
        const bf16 *query = start + head * group * dim, *key = start + (heads + head) * dim, *value = key + kv * dim;
        bf16 *keys = cache + ((first + row) * kv + head) * room * dim, *values = keys + slots * kv * room * dim;
        bf16 *target = out + (row * heads + head * group) * dim;
        const bf16 *c = cosine + row * dim, *s = sine + row * dim;
        if (dim == 64 && group == 3)
            attend_one(query, key, value, c, s, keys, values, target, position, room, 3, 64, scale, scratch);
        else if (dim == 64)
            attend_one(query, key, value, c, s, keys, values, target, position, room, group, 64, scale, scratch);
        else if (dim == 128)
            attend_one(query, key, value, c, s, keys, values, target, position, room, group, 128, scale, scratch);
        else
            attend_one(query, key, value, c, s, keys, values, target, position, room, group, dim, scale, scratch);
        free(scratch);
    }
    return (int)failed;
}
