// One small kernel in a fresh sandbox: load, three windows of 4 KiB, launch. No C library and no WASI.
#include "tensorwasm.h"

static const unsigned char ptx[] = {
#embed "../../examples/vector_add/vector_add.sm_80.ptx"
};

#define ELEMENTS 1024
static float a[ELEMENTS], b[ELEMENTS], c[ELEMENTS];

// Answers 0 if the sums are right, 1 if not, or a negative code.
__attribute__((export_name("once"))) int32_t once(void)
{
    int64_t kernel = wasi_cuda_load_ptx(ptx, sizeof ptx, "vector_add", 10);
    if (kernel < 0)
        return (int32_t)kernel;
    a[7] = 3, b[7] = 4, a[ELEMENTS - 1] = 1;
    tw_args args;
    tw_args_clear(&args);
    tw_arg_ptr(&args, a, sizeof a);
    tw_arg_ptr(&args, b, sizeof b);
    tw_arg_ptr(&args, c, sizeof c);
    tw_arg_u32(&args, ELEMENTS);
    tw_dim3 grid = {ELEMENTS / 256, 1, 1}, block = {256, 1, 1};
    int32_t code = tw_launch(kernel, grid, block, 0, &args);
    if (code < 0)
        return code;
    return !(c[7] == 7 && c[ELEMENTS - 1] == 1 && c[0] == 0);
}

// The same sandbox without a kernel.
__attribute__((export_name("nothing"))) int32_t nothing(void)
{
    return 0;
}
