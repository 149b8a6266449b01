// Softmax of every row of a matrix, in place in a window of this program's memory. The GPU's expf is an
// approximation, so results agree within a tolerance of 2e-6, not to the bit.
#include "guest.h"

static const unsigned char ptx_80[] = {
#embed "softmax.sm_80.ptx"
};
static const unsigned char ptx_75[] = {
#embed "softmax.sm_75.ptx"
};
static const struct variant variants[] = {{ptx_80, sizeof ptx_80}, {ptx_75, sizeof ptx_75}};

#define COLUMNS 300
#define TOLERANCE 2e-6

static void softmax_row(const float *row, float *result, int columns)
{
    float most = row[0];
    for (int i = 1; i < columns; i++)
        most = fmaxf(most, row[i]);
    double sum = 0.0;
    for (int i = 0; i < columns; i++)
        sum += exp((double)row[i] - most);
    for (int i = 0; i < columns; i++)
        result[i] = (float)(exp((double)row[i] - most) / sum);
}

// Take n rows of 300. Returns how many elements came out wrong, or a negative code.
__attribute__((export_name("run"))) int run(int n)
{
    REQUIRE_SIZE(n, 4096);
    size_t count = (size_t)n * COLUMNS;
    float *matrix = allocate(count, sizeof *matrix), *expected = allocate(count, sizeof *expected);
    fill_floats(matrix, count, 9);
    for (size_t i = 0; i < count; i++)
        matrix[i] *= 10.0f;
    for (int row = 0; row < n; row++)
        softmax_row(matrix + row * COLUMNS, expected + row * COLUMNS, COLUMNS);

    static int64_t kernel;
    TRY(load_kernel(&kernel, "softmax", variants, 2));
    tw_args args;
    tw_args_clear(&args);
    tw_arg_ptr(&args, matrix, count * sizeof *matrix);
    tw_arg_u32(&args, COLUMNS);
    tw_dim3 grid = {n, 1, 1}, block = {128, 1, 1};
    TRY(tw_launch(kernel, grid, block, 0, &args));
    TRY(wasi_cuda_sync());

    struct verdict verdict = compare_floats(matrix, expected, count, TOLERANCE);
    int mismatches = conclude(verdict, "softmax: %d rows of %d", n, COLUMNS);
    free(matrix), free(expected);
    return mismatches;
}

int main(int argc, char **argv)
{
    return run(problem_size(argc, argv, 64)) != 0;
}
