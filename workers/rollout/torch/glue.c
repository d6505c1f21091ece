/* What stands between the matrix products of a decode step, for bfloat16 on a CPU: one pass over memory each.
   Arithmetic is float32, rounded once at the end. Built and checked against plain torch by native.py. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef uint16_t bf16;

static inline float widen(bf16 value) {
    uint32_t bits = (uint32_t)value << 16;
    float out;
    memcpy(&out, &bits, 4);
    return out;
}

static inline bf16 narrow(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return (bf16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

/* Sixteen at a time, by the compiler's own vectors: one register where the processor has wide ones, several where not. */
#define LANES 16
#define MOST_DIM 256 /* head sizes: multiples of LANES up to this; native.py asks for no other */
typedef float floats __attribute__((vector_size(4 * LANES)));
typedef uint32_t words __attribute__((vector_size(4 * LANES)));
typedef bf16 halves __attribute__((vector_size(2 * LANES)));

static inline floats load(const bf16 *from) {
    halves raw;
    memcpy(&raw, from, sizeof raw);
    return (floats)(__builtin_convertvector(raw, words) << 16);
}

/* Sums by halves: sixteen additions in a row would wait for one another. */
static inline float total_of(floats values) {
    typedef float eight __attribute__((vector_size(32)));
    typedef float four __attribute__((vector_size(16)));
    eight low8, high8;
    four low4, high4;
    memcpy(&low8, &values, 32);
    memcpy(&high8, (const char *)&values + 32, 32);
    low8 += high8;
    memcpy(&low4, &low8, 16);
    memcpy(&high4, (const char *)&low8 + 16, 16);
    low4 += high4;
    return (low4[0] + low4[2]) + (low4[1] + low4[3]);
}

/* e^x to 2e-7 relative, written so that loops over it vectorise: 2^whole by exponent bits, the rest by its series. */
static inline float exponential(float x) {
    x = x < -87.0f ? -87.0f : (x > 88.0f ? 88.0f : x);
    float whole = rintf(x * 1.44269504f);
    float r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
    float series = 1 + r * (1 + r * (0.5f + r * (0.166666667f + r * (0.0416666667f + r * (0.00833333333f + r * 0.00138888889f)))));
    uint32_t bits = (uint32_t)((int32_t)whole + 127) << 23;
    float power;
    memcpy(&power, &bits, 4);
    return series * power;
}

/* out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight */
void rms_norm(const bf16 *x, const bf16 *weight, bf16 *out, int64_t rows, int64_t width, float eps) {
#pragma omp parallel for schedule(static) if (rows * width > 16384)
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
#pragma omp parallel for schedule(static) if (rows * width > 16384)
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

/* One slot and one kv head: its key and value are written at `position`, its `group` query heads read 0..position. */
static inline __attribute__((always_inline)) void attend_one(
    const bf16 *query, const bf16 *key, const bf16 *value, const bf16 *cosine, const bf16 *sine, bf16 *keys, bf16 *values,
    bf16 *out, int64_t position, int64_t group, int64_t dim, float scale, float *scratch) {
    int64_t span = position + 1;
    float *rotated = scratch, *turned = scratch + group * dim, *scores = turned + dim;
    rotate(key, cosine, sine, 1.0f, turned, dim);
    for (int64_t d = 0; d < dim; d++) keys[position * dim + d] = narrow(turned[d]);
    memcpy(values + position * dim, value, dim * sizeof(bf16));
    for (int64_t g = 0; g < group; g++) rotate(query + g * dim, cosine, sine, scale, rotated + g * dim, dim);
    for (int64_t g = 0; g < group; g++) {
        const float *mine = rotated + g * dim;
        for (int64_t p = 0; p < span; p++) {
            floats sum = {0};
#pragma GCC unroll 8
            for (int64_t d = 0; d < dim; d += LANES) {
                floats part;
                memcpy(&part, mine + d, sizeof part);
                sum += part * load(keys + p * dim + d);
            }
            scores[g * span + p] = total_of(sum);
        }
    }
    for (int64_t g = 0; g < group; g++) {
        float *row = scores + g * span, most = row[0], total = 0;
#pragma omp simd reduction(max : most)
        for (int64_t p = 1; p < span; p++) most = row[p] > most ? row[p] : most;
#pragma omp simd reduction(+ : total)
        for (int64_t p = 0; p < span; p++) {
            row[p] = exponential(row[p] - most);
            total += row[p];
        }
        float inverse = 1.0f / total;
        floats mixed[MOST_DIM / LANES] = {{0}};
        for (int64_t p = 0; p < span; p++)
#pragma GCC unroll 8
            for (int64_t d = 0; d < dim; d += LANES) mixed[d / LANES] += row[p] * load(values + p * dim + d);
        for (int64_t d = 0; d < dim; d++) out[g * dim + d] = narrow(mixed[d / LANES][d % LANES] * inverse);
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
        if (dim == 64)
            attend_one(query, key, value, c, s, keys, values, target, position, group, 64, scale, scratch);
        else if (dim == 128)
            attend_one(query, key, value, c, s, keys, values, target, position, group, 128, scale, scratch);
        else
            attend_one(query, key, value, c, s, keys, values, target, position, group, dim, scale, scratch);
        free(scratch);
    }
    return (int)failed;
}
