/* Matrix products on AMX tiles, for bfloat16: y = x W^T + (x A^T) B^T + bias + residual, summed in float32 and rounded once.
   A tile of W is read once for 64 rows of x, so that a decode step of 64 sequences streams every weight once.
   Built and checked against plain torch by native.py; without AMX, `tiles_work` says no and nothing else here is called. */

#include "numbers.h"

#if defined(__AVX512F__) || defined(__AMX_BF16__)
#include <immintrin.h>
#endif

#define TILE 16       /* rows of a tile, and its columns of sums */
#define DEPTH 32      /* products a tile multiplication adds to each sum */
#define BLOCK 4       /* tiles of x under way at a time */
#define CHUNK 4       /* column tiles a thread takes at a time */
#define PIECE (TILE * DEPTH)

/* `turn`: 16 rows of 16 words, `stride` bf16 apart, into 16 columns one after another: a pair of inputs moves as one word. */
#ifdef __AVX512F__
/* Past the cache: what is packed is much larger, and not read soon. `to` is a multiple of 64 bytes. */
static inline void written(void) { _mm_sfence(); } /* before other threads may read it */

static inline void turn(const bf16 *from, int64_t stride, bf16 *to) {
    __m512i a[TILE], b[TILE];
    for (int c = 0; c < TILE; c++) a[c] = _mm512_loadu_si512(from + c * stride);
    for (int c = 0; c < TILE; c += 2) {
        b[c] = _mm512_unpacklo_epi32(a[c], a[c + 1]);
        b[c + 1] = _mm512_unpackhi_epi32(a[c], a[c + 1]);
    }
    for (int c = 0; c < TILE; c += 4)
        for (int half = 0; half < 2; half++) {
            a[c + 2 * half] = _mm512_unpacklo_epi64(b[c + half], b[c + half + 2]);
            a[c + 2 * half + 1] = _mm512_unpackhi_epi64(b[c + half], b[c + half + 2]);
        }
    for (int c = 0; c < TILE; c += 8)
        for (int k = 0; k < 4; k++) {
            b[c + k] = _mm512_shuffle_i32x4(a[c + k], a[c + k + 4], 0x88);
            b[c + k + 4] = _mm512_shuffle_i32x4(a[c + k], a[c + k + 4], 0xdd);
        }
    for (int k = 0; k < 8; k++) {
        _mm512_stream_si512((__m512i *)(to + 2 * TILE * k), _mm512_shuffle_i32x4(b[k], b[k + 8], 0x88));
        _mm512_stream_si512((__m512i *)(to + 2 * TILE * (k + 8)), _mm512_shuffle_i32x4(b[k], b[k + 8], 0xdd));
    }
}
#else
static inline void written(void) {}

static inline void turn(const bf16 *from, int64_t stride, bf16 *to) {
    uint32_t rows[TILE][TILE], columns[TILE][TILE];
    for (int c = 0; c < TILE; c++) memcpy(rows[c], from + c * stride, sizeof rows[c]);
    for (int p = 0; p < TILE; p++)
        for (int c = 0; c < TILE; c++) columns[p][c] = rows[c][p];
    memcpy(to, columns, sizeof columns);
}
#endif

/* W [outputs, inputs], by rows, into [outputs / 16, inputs / 32, 16 pairs of inputs, 16 outputs, 2]. */
void pack(const bf16 *weight, bf16 *packed, int64_t outputs, int64_t inputs) {
    int64_t depth = inputs / DEPTH;
#pragma omp parallel for schedule(static)
    for (int64_t column = 0; column < outputs / TILE; column++) {
        for (int64_t k = 0; k < depth; k++)
            turn(weight + column * TILE * inputs + k * DEPTH, inputs, packed + (column * depth + k) * PIECE);
        written();
    }
}

#if defined(__AMX_BF16__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>

#define ARCH_REQ_XCOMP_PERM 0x1023
#define XTILEDATA 18

/* Whether the processor has tiles and the kernel lets this process use them. */
int tiles_work(void) { return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0; }

static void configure(void) {
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } __attribute__((aligned(64))) plan = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) plan.bytes[tile] = 64, plan.rows[tile] = TILE;
    _tile_loadconfig(&plan);
}

/* Sums (registers 0..3) += x (4, 5, 6) * w (7), over `depth` tiles; `count` of the four row tiles are there. */
static inline __attribute__((always_inline)) void add_products(
    const bf16 *const x[BLOCK], int64_t stride, const bf16 *w, int64_t depth, const int count) {
    for (int64_t k = 0; k < depth; k++, w += PIECE) {
        _tile_loadd(7, w, 64);
        _tile_loadd(4, x[0] + k * DEPTH, stride);
        _tile_dpbf16ps(0, 4, 7);
        if (count > 1) {
            _tile_loadd(5, x[1] + k * DEPTH, stride);
            _tile_dpbf16ps(1, 5, 7);
        }
        if (count > 2) {
            _tile_loadd(6, x[2] + k * DEPTH, stride);
            _tile_dpbf16ps(2, 6, 7);
        }
        if (count > 3) {
            _tile_loadd(4, x[3] + k * DEPTH, stride);
            _tile_dpbf16ps(3, 4, 7);
        }
    }
}

static void add_block(const bf16 *const x[BLOCK], int64_t stride, const bf16 *w, int64_t depth, int count) {
    if (count == 4)
        add_products(x, stride, w, depth, 4);
    else if (count == 3)
        add_products(x, stride, w, depth, 3);
    else if (count == 2)
        add_products(x, stride, w, depth, 2);
    else
        add_products(x, stride, w, depth, 1);
}

typedef struct {
    const bf16 *data, *tail; /* [rows, width]; tail: the last rows, filled up to a tile with zeros, where they are fewer */
    int64_t rows, width;
} Rows;

static const bf16 *row_tile(const Rows *x, int64_t tile) {
    return (tile + 1) * TILE > x->rows ? x->tail : x->data + tile * TILE * x->width;
}

static void add_rows(const Rows *x, int64_t first, int count, const bf16 *packed, int64_t column) {
    const bf16 *tiles[BLOCK] = {0};
    for (int tile = 0; tile < count; tile++) tiles[tile] = row_tile(x, first + tile);
    add_block(tiles, 2 * x->width, packed + column * TILE * x->width, x->width / DEPTH, count);
}

/* One tile of columns of y, all rows. low, raising: as in `multiply`; NULL where there is no adapter. */
static void column_tile(const Rows *x, const bf16 *packed, const Rows *low, const bf16 *raising, const bf16 *bias,
                        const bf16 *residual, bf16 *y, int64_t y_width, int64_t column) {
    float sums[BLOCK][TILE][TILE] __attribute__((aligned(64)));
    int64_t tiles = (x->rows + TILE - 1) / TILE;
    for (int64_t first = 0; first < tiles; first += BLOCK) {
        int count = (int)(tiles - first < BLOCK ? tiles - first : BLOCK);
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        add_rows(x, first, count, packed, column);
        if (low) add_rows(low, first, count, raising, column);
        _tile_stored(0, sums[0], 64);
        _tile_stored(1, sums[1], 64);
        _tile_stored(2, sums[2], 64);
        _tile_stored(3, sums[3], 64);
        int64_t left = x->rows - first * TILE, rows = left < count * TILE ? left : count * TILE;
        for (int64_t r = 0; r < rows; r++) {
            const float *sum = sums[r / TILE][r % TILE];
            int64_t place = (first * TILE + r) * y_width + column * TILE;
            float values[TILE];
            for (int c = 0; c < TILE; c++) values[c] = sum[c];
            if (bias)
                for (int c = 0; c < TILE; c++) values[c] += widen(bias[column * TILE + c]);
            if (residual)
                for (int c = 0; c < TILE; c++) values[c] += widen(residual[place + c]);
            for (int c = 0; c < TILE; c++) y[place + c] = narrow(values[c]);
        }
    }
}

static void fill_tail(const Rows *x, bf16 *tail) {
    int64_t left = x->rows % TILE;
    if (left) memcpy(tail, x->data + (x->rows - left) * x->width, sizeof(bf16) * left * x->width);
}

/* y [rows, outputs] from x [rows, inputs] and W as `pack` left it. Inputs and ranks: multiples of 32; outputs: of 16.
   bias [outputs], residual [rows, outputs] and the adapter's two halves, packed alike, may be NULL.
   Returns 1 where memory ran out. */
int multiply(const bf16 *x, const bf16 *packed, const bf16 *bias, const bf16 *residual, const bf16 *lowering,
             const bf16 *raising, bf16 *y, int64_t rows, int64_t inputs, int64_t outputs, int64_t ranks) {
    int64_t whole = (rows + TILE - 1) / TILE * TILE, failed = 0;
    bf16 *tail = calloc(TILE * inputs, sizeof(bf16));
    if (!tail) return 1;
    Rows given = {x, tail, rows, inputs};
    fill_tail(&given, tail);
#pragma omp parallel reduction(| : failed)
    {
        bf16 *low = lowering ? calloc(whole * ranks, sizeof(bf16)) : NULL;
        Rows lowered = {low, low ? low + (whole - TILE) * ranks : NULL, rows, ranks};
        failed = lowering && !low;
        configure();
        /* Each thread for itself: this is less than what waiting for one another would take. */
        for (int64_t column = 0; low && column < ranks / TILE; column++)
            column_tile(&given, lowering, NULL, NULL, NULL, NULL, low, ranks, column);
#pragma omp for schedule(dynamic, CHUNK) nowait
        for (int64_t column = 0; column < outputs / TILE; column++)
            column_tile(&given, packed, low ? &lowered : NULL, raising, bias, residual, y, outputs, column);
        _tile_release();
        free(low);
    }
    free(tail);
    return (int)failed;
}

#else

int tiles_work(void) { return 0; }

int multiply(const bf16 *x, const bf16 *packed, const bf16 *bias, const bf16 *residual, const bf16 *lowering,
             const bf16 *raising, bf16 *y, int64_t rows, int64_t inputs, int64_t outputs, int64_t ranks) {
    (void)x, (void)packed, (void)bias, (void)residual, (void)lowering, (void)raising, (void)y;
    (void)rows, (void)inputs, (void)outputs, (void)ranks;
    return 1;
}

#endif
