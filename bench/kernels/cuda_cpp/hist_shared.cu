// Count bytes in 256 bins: each block counts in shared memory, then adds its counts to the result.
extern "C" __global__ void hist_shared(const uchar4* __restrict__ data, unsigned* bins, int n)
{
    __shared__ unsigned counts[256];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) counts[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) {
        uchar4 four = data[i];
        atomicAdd(&counts[four.x], 1u);
        atomicAdd(&counts[four.y], 1u);
        atomicAdd(&counts[four.z], 1u);
        atomicAdd(&counts[four.w], 1u);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(&bins[i], counts[i]);
}
