// d[i] = a[i] * b[i] for a batch of 16 x 16 matrices, row-major: a and b in half precision, d in single.
// One warp per product: block i computes product i. From sm_80 on with the tensor cores, below with plain arithmetic.
#include <cuda_fp16.h>

#define SIDE 16
#define ELEMENTS (SIDE * SIDE)

#if __CUDA_ARCH__ >= 800
#include <mma.h>
using namespace nvcuda;

extern "C" __global__ void wmma_product(const half *a, const half *b, float *d)
{
    wmma::fragment<wmma::matrix_a, SIDE, SIDE, SIDE, half, wmma::row_major> a_part;
    wmma::fragment<wmma::matrix_b, SIDE, SIDE, SIDE, half, wmma::row_major> b_part;
    wmma::fragment<wmma::accumulator, SIDE, SIDE, SIDE, float> sum;

    wmma::load_matrix_sync(a_part, a + blockIdx.x * ELEMENTS, SIDE);
    wmma::load_matrix_sync(b_part, b + blockIdx.x * ELEMENTS, SIDE);
    wmma::fill_fragment(sum, 0.0f);
    wmma::mma_sync(sum, a_part, b_part, sum);
    wmma::store_matrix_sync(d + blockIdx.x * ELEMENTS, sum, SIDE, wmma::mem_row_major);
}
#else
extern "C" __global__ void wmma_product(const half *a, const half *b, float *d)
{
    a += blockIdx.x * ELEMENTS;
    b += blockIdx.x * ELEMENTS;
    d += blockIdx.x * ELEMENTS;
    for (unsigned i = threadIdx.x; i < ELEMENTS; i += blockDim.x) {
        unsigned row = i / SIDE, column = i % SIDE;
        float sum = 0.0f;
        for (unsigned k = 0; k < SIDE; k++)
            sum = fmaf(__half2float(a[row * SIDE + k]), __half2float(b[k * SIDE + column]), sum);
        d[i] = sum;
    }
}
#endif
