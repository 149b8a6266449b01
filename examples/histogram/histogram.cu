// bins[v] += how often byte v occurs in data, for 256 bins of u32. Any grid; threads stride over the n bytes.
#define BINS 256

// Every byte is one atomic addition in global memory.
extern "C" __global__ void histogram_global(const unsigned char *data, unsigned *bins, unsigned n)
{
    unsigned stride = gridDim.x * blockDim.x;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride)
        atomicAdd(&bins[data[i]], 1);
}

// Every block counts into its own copy in shared memory and adds that to the global bins once.
extern "C" __global__ void histogram_shared(const unsigned char *data, unsigned *bins, unsigned n)
{
    __shared__ unsigned own[BINS];

    for (unsigned bin = threadIdx.x; bin < BINS; bin += blockDim.x)
        own[bin] = 0;
    __syncthreads();
    unsigned stride = gridDim.x * blockDim.x;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride)
        atomicAdd(&own[data[i]], 1);
    __syncthreads();
    for (unsigned bin = threadIdx.x; bin < BINS; bin += blockDim.x)
        if (own[bin] != 0)
            atomicAdd(&bins[bin], own[bin]);
}
