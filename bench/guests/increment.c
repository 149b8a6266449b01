// One small kernel over 256 bytes, for requests over HTTP. No C library and no WASI.
#include "tensorwasm.h"

static const unsigned char ptx[] = {
#embed "increment.ptx"
};

static uint32_t numbers[64];

// Answers the number after the given one, or a negative code.
__attribute__((export_name("increment"))) int32_t increment(int32_t number)
{
    int64_t kernel = wasi_cuda_load_ptx(ptx, sizeof ptx, "increment", 9);
    if (kernel < 0)
        return (int32_t)kernel;
    numbers[63] = number;
    tw_args args;
    tw_args_clear(&args);
    tw_arg_ptr(&args, numbers, sizeof numbers);
    tw_dim3 grid = {1, 1, 1}, block = {64, 1, 1};
    int32_t code = tw_launch(kernel, grid, block, 0, &args);
    return code < 0 ? code : (int32_t)numbers[63];
}
