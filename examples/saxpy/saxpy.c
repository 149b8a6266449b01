// y = alpha * x + y, with x in a device buffer and y a window of this program's memory: both kinds of pointer in one
// launch. The grid is smaller than the vector; threads stride.
#include "guest.h"

static const unsigned char ptx_80[] = {
#embed "saxpy.sm_80.ptx"
};
static const unsigned char ptx_75[] = {
#embed "saxpy.sm_75.ptx"
};
static const struct variant variants[] = {{ptx_80, sizeof ptx_80}, {ptx_75, sizeof ptx_75}};

#define ALPHA 2.5f

// Update n elements. Returns how many came out wrong, or a negative code.
__attribute__((export_name("run"))) int run(int n)
{
    REQUIRE_SIZE(n, 4 << 20);
    size_t bytes = n * sizeof(float);
    float *x = allocate(n, sizeof *x), *y = allocate(n, sizeof *y), *expected = allocate(n, sizeof *expected);
    fill_floats(x, n, 3);
    fill_floats(y, n, 4);
    for (int i = 0; i < n; i++) {
        float product = ALPHA * x[i]; // rounded, as the kernel does
        expected[i] = product + y[i];
    }

    static int64_t kernel;
    int64_t device_x;
    TRY(load_kernel(&kernel, "saxpy", variants, 2));
    TRY(device_x = tw_alloc(bytes));
    TRY(tw_write(device_x, x, bytes));
    tw_args args;
    tw_args_clear(&args);
    tw_arg_f32(&args, ALPHA);
    tw_arg_buffer(&args, device_x, 0);
    tw_arg_ptr(&args, y, bytes);
    tw_arg_u32(&args, n);
    tw_dim3 grid = {blocks_for(n, 4 * 128), 1, 1}, block = {128, 1, 1};
    TRY(tw_launch(kernel, grid, block, 0, &args));
    TRY(wasi_cuda_sync());
    TRY(tw_free(device_x));

    int mismatches = conclude(compare_floats(y, expected, n, 0.0), "saxpy: %d elements", n);
    free(x), free(y), free(expected);
    return mismatches;
}

int main(int argc, char **argv)
{
    return run(problem_size(argc, argv, 65536)) != 0;
}
