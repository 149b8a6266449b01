// Count values in bins of global memory; a value above the last bin is counted there.
extern "C" __global__ void hist_global(const unsigned* __restrict__ data, unsigned* bins, int n, unsigned count)
{
    int stride = blockDim.x * gridDim.x;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) atomicAdd(&bins[min(data[i], count - 1)], 1u);
}
