// Shared memory static and dynamic, shuffles, atomics, votes, launch bounds, a jump table, printf.
#include <cstdio>

__shared__ double scratch[64];
extern __shared__ float dynamic[];

extern "C" __global__ void __launch_bounds__(256, 2) reduce(const float* in, float* out, unsigned n) {
    __shared__ float partial[32];
    float sum = 0;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += in[i];
    for (int d = 16; d; d >>= 1) sum += __shfl_down_sync(0xffffffffu, sum, d);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : 0;
        for (int d = 16; d; d >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, d);
        if (threadIdx.x == 0) atomicAdd(out, sum);
    }
}

extern "C" __global__ void histogram(const unsigned char* in, unsigned* bins, unsigned n) {
    __shared__ unsigned local[256];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) local[i] = 0;
    __syncthreads();
    for (unsigned i = threadIdx.x; i < n; i += blockDim.x) atomicAdd(&local[in[i]], 1u);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(&bins[i], local[i]);
}

extern "C" __global__ void dispatch(int* out, int op, const double* x) {
    int r;
    switch (op) {
        case 0: r = __float2int_rn(__sinf(x[0])); break;
        case 1: r = __popc(out[1]); break;
        case 2: r = __clz(out[2]) ^ op; break;
        case 3: r = (int)scratch[threadIdx.x]; break;
        case 4: r = (int)dynamic[threadIdx.x]; break;
        case 5: r = __ballot_sync(~0u, out[3] > 0); break;
        case 6: r = __any_sync(~0u, out[4]); break;
        case 7: r = (int)sqrt(x[1]); break;
        default: r = -1; printf("no operation %d for thread %u\n", op, threadIdx.x);
    }
    out[threadIdx.x] = r;
}

extern "C" __global__ void compare_exchange(unsigned long long* lock, unsigned long long value) {
    while (atomicCAS(lock, 0ull, value) != 0ull) __nanosleep(100);
    __threadfence();
    atomicExch(lock, 0ull);
}
