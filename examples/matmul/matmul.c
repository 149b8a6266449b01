// Multiplies two matrices in device buffers: tiles in shared memory, a barrier, a fused multiply-add in a fixed
// order.
#include "guest.h"

static const unsigned char ptx_80[] = {
#embed "matmul.sm_80.ptx"
};
static const unsigned char ptx_75[] = {
#embed "matmul.sm_75.ptx"
};
static const struct variant variants[] = {{ptx_80, sizeof ptx_80}, {ptx_75, sizeof ptx_75}};

// The kernel's own order of operations, so the results are equal to the last bit.
static void multiply(const float *a, const float *b, float *c, int m, int n, int k)
{
    for (int row = 0; row < m; row++)
        for (int column = 0; column < n; column++) {
            float sum = 0.0f;
            for (int i = 0; i < k; i++)
                sum = fmaf(a[row * k + i], b[i * n + column], sum);
            c[row * n + column] = sum;
        }
}

// Multiply n x (n + 3) by (n + 3) x n. Returns how many elements came out wrong, or a negative code.
__attribute__((export_name("run"))) int run(int n)
{
    REQUIRE_SIZE(n, 512);
    int inner = n + 3; // not a multiple of the tile, to have a ragged edge
    size_t factor = (size_t)n * inner, product = (size_t)n * n;
    float *a = allocate(factor, sizeof *a), *b = allocate(factor, sizeof *b);
    float *c = allocate(product, sizeof *c), *expected = allocate(product, sizeof *expected);
    fill_floats(a, factor, 5);
    fill_floats(b, factor, 6);

    static int64_t kernel;
    int64_t device_a, device_b, device_c;
    TRY(load_kernel(&kernel, "matmul", variants, 2));
    TRY(device_a = tw_alloc(factor * sizeof *a));
    TRY(device_b = tw_alloc(factor * sizeof *b));
    TRY(device_c = tw_alloc(product * sizeof *c));
    TRY(tw_write(device_a, a, factor * sizeof *a));
    TRY(tw_write(device_b, b, factor * sizeof *b));
    tw_args args;
    tw_args_clear(&args);
    tw_arg_buffer(&args, device_a, 0);
    tw_arg_buffer(&args, device_b, 0);
    tw_arg_buffer(&args, device_c, 0);
    tw_arg_u32(&args, n);
    tw_arg_u32(&args, n);
    tw_arg_u32(&args, inner);
    tw_dim3 grid = {blocks_for(n, 16), blocks_for(n, 16), 1}, block = {16, 16, 1};
    TRY(tw_launch(kernel, grid, block, 0, &args));
    TRY(tw_read(c, device_c, product * sizeof *c));
    TRY(tw_free(device_a));
    TRY(tw_free(device_b));
    TRY(tw_free(device_c));

    multiply(a, b, expected, n, n, inner);
    struct verdict verdict = compare_floats(c, expected, product, 0.0);
    int mismatches = conclude(verdict, "matmul: %d x %d by %d x %d", n, inner, inner, n);
    free(a), free(b), free(c), free(expected);
    return mismatches;
}

int main(int argc, char **argv)
{
    return run(problem_size(argc, argv, 64)) != 0;
}
