// Normalise each row to mean 0 and variance 1, then scale and shift; the row is kept in dynamic shared memory.
extern __shared__ float cached[];

__device__ float block_sum(float value, float* warps)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
    if (lane == 0) warps[warp] = value;
    __syncthreads();
    value = lane < blockDim.x / 32 ? warps[lane] : 0.0f;
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
    __syncthreads();
    return value;
}

extern "C" __global__ void layernorm(const float* __restrict__ in, const float* __restrict__ gain,
                                     const float* __restrict__ bias, float* __restrict__ out, int columns,
                                     float epsilon)
{
    float* warps = cached + columns;
    const float* row = in + (size_t)blockIdx.x * columns;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += cached[i] = row[i];
    float mean = block_sum(sum, warps) / columns;
    float squares = 0.0f;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) {
        float centred = cached[i] - mean;
        squares += centred * centred;
    }
    float scale = rsqrtf(block_sum(squares, warps) / columns + epsilon);
    for (int i = threadIdx.x; i < columns; i += blockDim.x)
        out[(size_t)blockIdx.x * columns + i] = (cached[i] - mean) * scale * gain[i] + bias[i];
}
