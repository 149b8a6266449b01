// The kernels of cub::DeviceRadixSort for keys of 32 bits.
#include <cub/device/device_radix_sort.cuh>

cudaError_t sort(void* scratch, size_t& bytes, const unsigned* in, unsigned* out, int n)
{
    return cub::DeviceRadixSort::SortKeys(scratch, bytes, in, out, n);
}
