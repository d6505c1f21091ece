/* Drawing one token a row from bfloat16 logits: two-level inverse of the cumulative distribution, as in sampling.py. */

#include "numbers.h"

#define WIDTH 256 /* tokens a chunk: its probabilities are summed in float32, the chunks in double */

/* exp((x - most) * inverse) of a chunk goes into `out`. Returns the sum. */
static float weigh(const bf16 *x, int64_t count, float most, float inverse, float *out) {
    float total = 0;
#pragma omp simd reduction(+ : total)
    for (int64_t i = 0; i < count; i++) {
        out[i] = exponential((widen(x[i]) - most) * inverse);
        total += out[i];
    }
    return total;
}

static int64_t length_of(int64_t chunk, int64_t vocabulary) {
    int64_t left = vocabulary - chunk * WIDTH;
    return left < WIDTH ? left : WIDTH;
}

/* number lies in [0, 1), below it by more than rounding: the walk ends on a token that has probability. sums: scratch, one a chunk. */
static void draw_row(const bf16 *x, int64_t vocabulary, float inverse, double number, int64_t *token, float *logprob, float *sums) {
    float most = -INFINITY, weights[WIDTH];
#pragma omp simd reduction(max : most)
    for (int64_t i = 0; i < vocabulary; i++) {
        float value = widen(x[i]);
        most = value > most ? value : most;
    }
    int64_t last = (vocabulary - 1) / WIDTH, chunk = 0, within = 0;
    double total = 0, before = 0, own = 0, passed = 0;
    for (int64_t c = 0; c <= last; c++) total += sums[c] = weigh(x + c * WIDTH, length_of(c, vocabulary), most, inverse, weights);
    while (chunk < last && before + sums[chunk] <= number * total) before += sums[chunk++];
    int64_t count = length_of(chunk, vocabulary);
    weigh(x + chunk * WIDTH, count, most, inverse, weights);
    for (int64_t i = 0; i < count; i++) own += weights[i];
    /* By its share of the chunk: the float32 sum may differ from this one in its last bits. */
    double share = (number * total - before) / sums[chunk];
    double rest = (share < 1 - 1e-12 ? share : 1 - 1e-12) * own;
    while (within < count - 1 && passed + weights[within] <= rest) passed += weights[within++];
    *token = chunk * WIDTH + within;
    *logprob = (float)((double)((widen(x[*token]) - most) * inverse) - log(total));
}

/* logits [rows, vocabulary]; temperatures, numbers, tokens, logprobs [rows]; temperatures > 0; numbers in (0, 1).
   Returns 1 where memory ran out. */
int draw(const bf16 *logits, const float *temperatures, const double *numbers, int64_t *tokens, float *logprobs, int64_t rows,
         int64_t vocabulary) {
    int64_t chunks = (vocabulary + WIDTH - 1) / WIDTH;
    float *sums = malloc(sizeof(float) * rows * chunks);
    if (!sums) return 1;
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t r = 0; r < rows; r++) {
        double number = numbers[r] < 1 - 1e-12 ? numbers[r] : 1 - 1e-12;
        draw_row(logits + r * vocabulary, vocabulary, 1.0f / temperatures[r], number, tokens + r, logprobs + r, sums + r * chunks);
    }
    free(sums);
    return 0;
}
