// y = A * x in doubles, a row a block.
extern "C" __global__ void matvec_f64(const double* __restrict__ a, const double* __restrict__ x,
                                      double* __restrict__ y, int columns)
{
    __shared__ double partial[32];
    const double2* row = reinterpret_cast<const double2*>(a + (size_t)blockIdx.x * columns);
    const double2* vector = reinterpret_cast<const double2*>(x);
    double sum = 0.0;
    for (int i = threadIdx.x; i < columns / 2; i += blockDim.x) {
        double2 left = row[i], right = vector[i];
        sum += left.x * right.x + left.y * right.y;
    }
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffffu, sum, offset);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int warp = 1; warp < blockDim.x / 32; ++warp) sum += partial[warp];
        y[blockIdx.x] = sum;
    }
}
