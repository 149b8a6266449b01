// Sums a vector: warps shuffle, blocks write partial sums, this program adds those. The order of additions is fixed
// and the check follows it, so the results are equal to the last bit.
#include "guest.h"

static const unsigned char ptx_80[] = {
#embed "reduction.sm_80.ptx"
};
static const unsigned char ptx_75[] = {
#embed "reduction.sm_75.ptx"
};
static const struct variant variants[] = {{ptx_80, sizeof ptx_80}, {ptx_75, sizeof ptx_75}};

#define BLOCK 256

// What one warp computes: lane i takes lane i + 16, then i + 8, 4, 2, 1.
static float sum_warp(const float *lanes)
{
    float sums[32];
    memcpy(sums, lanes, sizeof sums);
    for (int distance = 16; distance > 0; distance /= 2)
        for (int lane = 0; lane < distance; lane++)
            sums[lane] += sums[lane + distance];
    return sums[0];
}

// What one block computes from up to 256 elements.
static float sum_block(const float *data, int count)
{
    float elements[BLOCK] = {0}, warp_sums[32] = {0};
    memcpy(elements, data, count * sizeof *data);
    for (int warp = 0; warp < BLOCK / 32; warp++)
        warp_sums[warp] = sum_warp(elements + 32 * warp);
    return sum_warp(warp_sums);
}

// Sum n elements. Returns how many partial sums came out wrong, or a negative code.
__attribute__((export_name("run"))) int run(int n)
{
    REQUIRE_SIZE(n, 4 << 20);
    int blocks = blocks_for(n, BLOCK);
    float *data = allocate(n, sizeof *data);
    float *partial = allocate(blocks, sizeof *partial), *expected = allocate(blocks, sizeof *expected);
    fill_floats(data, n, 7);

    static int64_t kernel;
    TRY(load_kernel(&kernel, "reduction", variants, 2));
    tw_args args;
    tw_args_clear(&args);
    tw_arg_ptr(&args, data, n * sizeof *data);
    tw_arg_ptr(&args, partial, blocks * sizeof *partial);
    tw_arg_u32(&args, n);
    tw_dim3 grid = {blocks, 1, 1}, block = {BLOCK, 1, 1};
    TRY(tw_launch(kernel, grid, block, 0, &args));
    TRY(wasi_cuda_sync());

    double sum = 0.0;
    for (int block = 0; block < blocks; block++) {
        int start = block * BLOCK;
        expected[block] = sum_block(data + start, n - start < BLOCK ? n - start : BLOCK);
        sum += partial[block];
    }
    struct verdict verdict = compare_floats(partial, expected, blocks, 0.0);
    int mismatches = conclude(verdict, "reduction: %d elements, sum %.4f", n, sum);
    free(data), free(partial), free(expected);
    return mismatches;
}

int main(int argc, char **argv)
{
    return run(problem_size(argc, argv, 100000)) != 0;
}
