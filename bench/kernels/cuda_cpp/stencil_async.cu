// A 1D stencil of 9 points over each row, the next tile fetched by cp.async while this one is computed; 256 threads.
// Rows have `tiles` tiles of 256 numbers, with a halo of 4 on both sides.
#include <cuda_pipeline.h>

#define TILE 256
#define RADIUS 4

extern "C" __global__ void __launch_bounds__(TILE)
stencil_async(const float* __restrict__ in, const float* __restrict__ weights, float* __restrict__ out, int tiles)
{
    __shared__ __align__(16) float buffer[2][TILE + 2 * RADIUS];
    const float* row = in + (size_t)blockIdx.x * (tiles * TILE + 2 * RADIUS);
    float* result = out + (size_t)blockIdx.x * tiles * TILE;
    float w[2 * RADIUS + 1];
#pragma unroll
    for (int i = 0; i <= 2 * RADIUS; ++i) w[i] = weights[i];

    auto fetch = [&](int tile) {
        int i = threadIdx.x * 4;
        if (i < TILE + 2 * RADIUS) __pipeline_memcpy_async(&buffer[tile % 2][i], row + tile * TILE + i, 16);
        __pipeline_commit();
    };

    fetch(0);
    for (int tile = 0; tile < tiles; ++tile) {
        if (tile + 1 < tiles) {
            fetch(tile + 1);
            __pipeline_wait_prior(1);
        } else {
            __pipeline_wait_prior(0);
        }
        __syncthreads();
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i <= 2 * RADIUS; ++i) sum += w[i] * buffer[tile % 2][threadIdx.x + i];
        result[tile * TILE + threadIdx.x] = sum;
        __syncthreads();
    }
}
