// out[i] = source[index[i]]
extern "C" __global__ void gather(const int* __restrict__ index, const float* __restrict__ source,
                                  float* __restrict__ out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = source[index[i]];
}
