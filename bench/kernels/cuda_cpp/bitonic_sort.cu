// Sort each block's 1024 numbers in shared memory, 512 threads a block.
#define COUNT 1024

extern "C" __global__ void __launch_bounds__(COUNT / 2) bitonic_sort(unsigned* __restrict__ data)
{
    __shared__ unsigned keys[COUNT];
    unsigned* mine = data + (size_t)blockIdx.x * COUNT;
    keys[threadIdx.x] = mine[threadIdx.x];
    keys[threadIdx.x + COUNT / 2] = mine[threadIdx.x + COUNT / 2];
    for (int size = 2; size <= COUNT; size *= 2) {
        bool ascending = (threadIdx.x & (size / 2)) == 0;
        for (int stride = size / 2; stride > 0; stride /= 2) {
            __syncthreads();
            int i = 2 * threadIdx.x - (threadIdx.x & (stride - 1));
            unsigned low = keys[i], high = keys[i + stride];
            if ((low > high) == ascending) {
                keys[i] = high;
                keys[i + stride] = low;
            }
        }
    }
    __syncthreads();
    mine[threadIdx.x] = keys[threadIdx.x];
    mine[threadIdx.x + COUNT / 2] = keys[threadIdx.x + COUNT / 2];
}
