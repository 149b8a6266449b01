// printf, assert and trap.
#include <assert.h>
#include <stdio.h>

extern "C" __global__ void messages(const int* in, int* out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    assert(in[i] != 7);
    if (in[i] < 0) printf("%d: %d is negative, %f\n", i, in[i], in[i] * 0.5);
    if (in[i] == 0x7fffffff) __trap();
    out[i] = in[i] + 1;
}
