// partial[block] = sum of the block's elements of data. Blocks of 256 threads, one element each; elements past n are
// zero. Lanes of a warp add by shuffling; warp 0 then adds the eight warp sums the same way. The order of additions
// is fixed: lane i takes lane i + 16, then i + 8, 4, 2, 1.
#define WARPS 8

__device__ float sum_warp(float value)
{
    for (int distance = 16; distance > 0; distance /= 2)
        value += __shfl_down_sync(0xFFFFFFFF, value, distance);
    return value;
}

extern "C" __global__ void reduction(const float *data, float *partial, unsigned n)
{
    __shared__ float warp_sums[WARPS];

    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float value = sum_warp(i < n ? data[i] : 0.0f);
    if (lane == 0)
        warp_sums[warp] = value;
    __syncthreads();
    if (warp == 0) {
        value = sum_warp(lane < WARPS ? warp_sums[lane] : 0.0f);
        if (lane == 0)
            partial[blockIdx.x] = value;
    }
}
