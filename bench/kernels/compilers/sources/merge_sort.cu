// The kernels of cub::DeviceMergeSort with a comparison of its own.
#include <cub/device/device_merge_sort.cuh>

struct Far {
    __device__ bool operator()(float a, float b) const { return fabsf(a) > fabsf(b); }
};

cudaError_t sort(void* scratch, size_t& bytes, float* keys, int n)
{
    return cub::DeviceMergeSort::SortKeys(scratch, bytes, keys, n, Far{});
}
