// C = A * B, row-major, 16x16 tiles in shared memory; every side may be ragged.
#define TILE 16

extern "C" __global__ void gemm_tiled(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c,
                                      int m, int n, int k)
{
    __shared__ float as[TILE][TILE];
    __shared__ float bs[TILE][TILE];
    int tx = threadIdx.x, ty = threadIdx.y;
    int row = blockIdx.y * TILE + ty, column = blockIdx.x * TILE + tx;
    float sum = 0.0f;
    for (int tile = 0; tile < k; tile += TILE) {
        as[ty][tx] = row < m && tile + tx < k ? a[row * k + tile + tx] : 0.0f;
        bs[ty][tx] = column < n && tile + ty < k ? b[(tile + ty) * n + column] : 0.0f;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TILE; ++i) sum += as[ty][i] * bs[i][tx];
        __syncthreads();
    }
    if (row < m && column < n) c[row * n + column] = sum;
}
