// The kernels of cub::DeviceReduce for a sum of floats.
#include <cub/device/device_reduce.cuh>

cudaError_t sum(void* scratch, size_t& bytes, const float* in, float* out, int n)
{
    return cub::DeviceReduce::Sum(scratch, bytes, in, out, n);
}
