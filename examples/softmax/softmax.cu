// Every row of a row-major rows x columns matrix becomes exp(x - max) / sum(exp(x - max)), in place.
// One block of 128 threads per row; threads stride over the columns.
#define WARPS 4

template <typename Combine> __device__ float reduce_block(float value, float neutral, Combine combine)
{
    __shared__ float warp_values[WARPS]; // each instantiation has its own, and is called once

    for (int distance = 16; distance > 0; distance /= 2)
        value = combine(value, __shfl_xor_sync(0xFFFFFFFF, value, distance));
    if (threadIdx.x % 32 == 0)
        warp_values[threadIdx.x / 32] = value;
    __syncthreads();
    value = neutral;
    for (int warp = 0; warp < WARPS; warp++)
        value = combine(value, warp_values[warp]);
    return value;
}

struct Maximum {
    __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

struct Sum {
    __device__ float operator()(float a, float b) const { return a + b; }
};

extern "C" __global__ void softmax(float *matrix, unsigned columns)
{
    float *row = matrix + (size_t)blockIdx.x * columns;
    float most = __int_as_float(0xFF800000);
    for (unsigned i = threadIdx.x; i < columns; i += blockDim.x)
        most = fmaxf(most, row[i]);
    most = reduce_block(most, most, Maximum());

    float sum = 0.0f;
    for (unsigned i = threadIdx.x; i < columns; i += blockDim.x) {
        row[i] = expf(row[i] - most);
        sum += row[i];
    }
    sum = reduce_block(sum, 0.0f, Sum());

    for (unsigned i = threadIdx.x; i < columns; i += blockDim.x)
        row[i] /= sum;
}
