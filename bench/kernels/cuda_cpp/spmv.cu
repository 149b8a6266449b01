// y = A * x, A in compressed rows, one warp a row.
extern "C" __global__ void spmv(const int* __restrict__ starts, const int* __restrict__ columns,
                                const float* __restrict__ values, const float* __restrict__ x, float* __restrict__ y,
                                int rows)
{
    int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    float sum = 0.0f;
    for (int i = starts[row] + lane; i < starts[row + 1]; i += 32) sum += values[i] * x[columns[i]];
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (lane == 0) y[row] = sum;
}
