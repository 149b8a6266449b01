// Softmax of each row, a row a block of 256 threads: maximum, sum, division.
#define BLOCK 256

template <typename Join> __device__ float block_reduce(float value, float* scratch, Join join)
{
    scratch[threadIdx.x] = value;
    __syncthreads();
    for (int half = BLOCK / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) scratch[threadIdx.x] = join(scratch[threadIdx.x], scratch[threadIdx.x + half]);
        __syncthreads();
    }
    float result = scratch[0];
    __syncthreads();
    return result;
}

extern "C" __global__ void softmax(const float* __restrict__ in, float* __restrict__ out, int columns)
{
    __shared__ float scratch[BLOCK];
    const float* row = in + (size_t)blockIdx.x * columns;
    float* result = out + (size_t)blockIdx.x * columns;
    float largest = -INFINITY;
    for (int i = threadIdx.x; i < columns; i += BLOCK) largest = fmaxf(largest, row[i]);
    largest = block_reduce(largest, scratch, [](float a, float b) { return fmaxf(a, b); });
    float sum = 0.0f;
    for (int i = threadIdx.x; i < columns; i += BLOCK) sum += expf(row[i] - largest);
    sum = block_reduce(sum, scratch, [](float a, float b) { return a + b; });
    for (int i = threadIdx.x; i < columns; i += BLOCK) result[i] = expf(row[i] - largest) / sum;
}
