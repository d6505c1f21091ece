/* bfloat16 and vectors of float32, shared by the kernels in C. Arithmetic is float32, rounded once at the end. */

#pragma once
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
