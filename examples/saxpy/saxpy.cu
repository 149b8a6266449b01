// y[i] = alpha * x[i] + y[i] for i < n, rounded twice. A grid of any size covers all n by striding.
extern "C" __global__ void saxpy(float alpha, const float *x, float *y, unsigned n)
{
    unsigned stride = gridDim.x * blockDim.x;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride)
        y[i] = alpha * x[i] + y[i];
}
