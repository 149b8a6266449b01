// Multiplies pairs of 16 x 16 half-precision matrices in device buffers: on tensor cores where the device has those
// of sm_80 or later, with a scalar kernel elsewhere. The values are small multiples of 1/8, so that every product and
// sum is exact and the order of additions, which tensor cores leave open, cannot matter.
#include "guest.h"

static const unsigned char ptx_80[] = {
#embed "wmma.sm_80.ptx"
};
static const unsigned char ptx_75[] = {
#embed "wmma.sm_75.ptx"
};
static const struct variant variants[] = {{ptx_80, sizeof ptx_80}, {ptx_75, sizeof ptx_75}};

#define SIDE 16
#define ELEMENTS (SIDE * SIDE)

// The bits of a half that equals a float. Only for zero and for values that a normal half can hold.
static uint16_t half_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return value == 0.0f ? 0 : (bits >> 16 & 0x8000) | (((bits >> 13) - ((127 - 15) << 10)) & 0x7FFF);
}

// Eighths in -2 .. 2, as halves and as floats.
static void fill(uint16_t *halves, float *floats, size_t count, uint32_t seed)
{
    for (size_t i = 0; i < count; i++) {
        floats[i] = (float)((int)(next_u32(&seed) % 33) - 16) / 8.0f;
        halves[i] = half_bits(floats[i]);
    }
}

static void multiply(const float *a, const float *b, float *d)
{
    for (int row = 0; row < SIDE; row++)
        for (int column = 0; column < SIDE; column++) {
            float sum = 0.0f;
            for (int k = 0; k < SIDE; k++)
                sum += a[row * SIDE + k] * b[k * SIDE + column];
            d[row * SIDE + column] = sum;
        }
}

// Compute n products. Returns how many elements came out wrong, or a negative code.
__attribute__((export_name("run"))) int run(int n)
{
    REQUIRE_SIZE(n, 4096);
    size_t count = (size_t)n * ELEMENTS, half_bytes = count * sizeof(uint16_t), float_bytes = count * sizeof(float);
    uint16_t *a = allocate(count, sizeof *a), *b = allocate(count, sizeof *b);
    float *a_floats = allocate(count, sizeof *a_floats), *b_floats = allocate(count, sizeof *b_floats);
    float *d = allocate(count, sizeof *d), *expected = allocate(count, sizeof *expected);
    fill(a, a_floats, count, 11);
    fill(b, b_floats, count, 12);

    static int64_t kernel;
    int64_t device_a, device_b, device_d;
    TRY(load_kernel(&kernel, "wmma_product", variants, 2));
    TRY(device_a = tw_alloc(half_bytes));
    TRY(device_b = tw_alloc(half_bytes));
    TRY(device_d = tw_alloc(float_bytes));
    TRY(tw_write(device_a, a, half_bytes));
    TRY(tw_write(device_b, b, half_bytes));
    tw_args args;
    tw_args_clear(&args);
    tw_arg_buffer(&args, device_a, 0);
    tw_arg_buffer(&args, device_b, 0);
    tw_arg_buffer(&args, device_d, 0);
    tw_dim3 grid = {n, 1, 1}, block = {32, 1, 1};
    TRY(tw_launch(kernel, grid, block, 0, &args));
    TRY(tw_read(d, device_d, float_bytes));
    TRY(tw_free(device_a));
    TRY(tw_free(device_b));
    TRY(tw_free(device_d));

    for (int i = 0; i < n; i++)
        multiply(a_floats + i * ELEMENTS, b_floats + i * ELEMENTS, expected + i * ELEMENTS);
    struct verdict verdict = compare_floats(d, expected, count, 0.0);
    int mismatches = conclude(verdict, "wmma: %d products of 16 x 16 x 16", n);
    free(a), free(b), free(a_floats), free(b_floats), free(d), free(expected);
    return mismatches;
}

int main(int argc, char **argv)
{
    return run(problem_size(argc, argv, 4)) != 0;
}
