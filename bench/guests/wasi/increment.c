// The same kernel in a program as compilers make it: libc's start and exit, arguments, the heap, and a line of output.
#include <stdio.h>
#include <stdlib.h>

#include "tensorwasm.h"

static const unsigned char ptx[] = {
#embed "../increment.ptx"
};

int main(int argc, char **argv)
{
    int64_t kernel = wasi_cuda_load_ptx(ptx, sizeof ptx, "increment", 9);
    uint32_t *numbers = calloc(64, sizeof *numbers);
    if (kernel < 0 || !numbers || argc != 2)
        return 1;
    numbers[63] = (uint32_t)atoi(argv[1]);
    tw_args args;
    tw_args_clear(&args);
    tw_arg_ptr(&args, numbers, 64 * sizeof *numbers);
    tw_dim3 grid = {1, 1, 1}, block = {64, 1, 1};
    if (tw_launch(kernel, grid, block, 0, &args) < 0)
        return 1;
    printf("%u\n", (unsigned)numbers[63]);
    free(numbers);
    return 0;
}
