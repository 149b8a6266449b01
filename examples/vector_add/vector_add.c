// Adds two vectors with a CUDA kernel that works directly on windows of this program's memory.
#include "guest.h"

static const unsigned char ptx_80[] = {
#embed "vector_add.sm_80.ptx"
};
static const unsigned char ptx_75[] = {
#embed "vector_add.sm_75.ptx"
};
static const struct variant variants[] = {{ptx_80, sizeof ptx_80}, {ptx_75, sizeof ptx_75}};

// Add n elements. Returns how many came out wrong, or a negative code.
__attribute__((export_name("run"))) int run(int n)
{
    REQUIRE_SIZE(n, 4 << 20);
    size_t bytes = n * sizeof(float);
    float *a = allocate(n, sizeof *a), *b = allocate(n, sizeof *b);
    float *c = allocate(n, sizeof *c);
    fill_floats(a, n, 1);
    fill_floats(b, n, 2);

    static int64_t kernel;
    TRY(load_kernel(&kernel, "vector_add", variants, 2));
    tw_args args;
    tw_args_clear(&args);
    tw_arg_ptr(&args, a, bytes);
    tw_arg_ptr(&args, b, bytes);
    tw_arg_ptr(&args, c, bytes);
    tw_arg_u32(&args, n);
    tw_dim3 grid = {blocks_for(n, 256), 1, 1}, block = {256, 1, 1};
    TRY(tw_launch(kernel, grid, block, 0, &args));
    TRY(wasi_cuda_sync());

    for (int i = 0; i < n; i++)
        a[i] += b[i];
    int mismatches = conclude(compare_floats(c, a, n, 0.0), "vector_add: %d elements", n);
    free(a), free(b), free(c);
    return mismatches;
}

int main(int argc, char **argv)
{
    return run(problem_size(argc, argv, 65536)) != 0;
}
