// D = A * B + C on whole tiles, through <mma.h>: one warp computes one tile of 16 by 16.
#include <mma.h>

using namespace nvcuda;

// a: m by k, row-major; b: k by n, column-major; c and d: m by n, row-major. m, n, k: multiples of 16.
extern "C" __global__ void wmma_f16(const half *a, const half *b, const float *c, float *d, int n, int k) {
  int row = blockIdx.y * 16, col = blockIdx.x * 16;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
  wmma::load_matrix_sync(sum, c + row * n + col, n, wmma::mem_row_major);
  for (int i = 0; i < k; i += 16) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> right;
    wmma::load_matrix_sync(left, a + row * k + i, k);
    wmma::load_matrix_sync(right, b + col * k + i, k);
    wmma::mma_sync(sum, left, right, sum);
  }
  for (int i = 0; i < sum.num_elements; i++) sum.x[i] *= 2.0f;
  wmma::store_matrix_sync(d + row * n + col, sum, n, wmma::mem_row_major);
}

// a: m by k, row-major; b: k by n, row-major; d: m by n, row-major. m: multiple of 32, n: of 8, k: of 16.
extern "C" __global__ void wmma_s8(const signed char *a, const signed char *b, int *d, int n, int k) {
  int row = blockIdx.y * 32, col = blockIdx.x * 8;
  wmma::fragment<wmma::accumulator, 32, 8, 16, int> sum;
  wmma::fill_fragment(sum, 7);
  for (int i = 0; i < k; i += 16) {
    wmma::fragment<wmma::matrix_a, 32, 8, 16, signed char, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 32, 8, 16, signed char, wmma::row_major> right;
    wmma::load_matrix_sync(left, a + row * k + i, k);
    wmma::load_matrix_sync(right, b + i * n + col, n);
    wmma::mma_sync(sum, left, right, sum);
  }
  wmma::store_matrix_sync(d + row * n + col, sum, n, wmma::mem_row_major);
}

// a: m by k, row-major; b: k by n, row-major; d: m by n, column-major with stride m. m, n: multiples of 16, k: of 8.
extern "C" __global__ void wmma_tf32(const float *a, const float *b, float *d, int m, int n, int k) {
  int row = blockIdx.y * 16, col = blockIdx.x * 16;
  wmma::fragment<wmma::accumulator, 16, 16, 8, float> sum;
  wmma::fill_fragment(sum, 0.0f);
  for (int i = 0; i < k; i += 8) {
    wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 8, wmma::precision::tf32, wmma::row_major> right;
    wmma::load_matrix_sync(left, a + row * k + i, k);
    wmma::load_matrix_sync(right, b + i * n + col, n);
    for (int j = 0; j < left.num_elements; j++) left.x[j] = wmma::__float_to_tf32(left.x[j]);
    for (int j = 0; j < right.num_elements; j++) right.x[j] = wmma::__float_to_tf32(right.x[j]);
    wmma::mma_sync(sum, left, right, sum);
  }
  wmma::store_matrix_sync(d + col * m + row, sum, m, wmma::mem_col_major);
}

// a: m by k, row-major; b: k by n, column-major; d: m by n, row-major. m, n: multiples of 8, k: of 4.
extern "C" __global__ void wmma_f64(const double *a, const double *b, double *d, int n, int k) {
  int row = blockIdx.y * 8, col = blockIdx.x * 8;
  wmma::fragment<wmma::accumulator, 8, 8, 4, double> sum;
  wmma::fill_fragment(sum, 0.0);
  for (int i = 0; i < k; i += 4) {
    wmma::fragment<wmma::matrix_a, 8, 8, 4, double, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 8, 8, 4, double, wmma::col_major> right;
    wmma::load_matrix_sync(left, a + row * k + i, k);
    wmma::load_matrix_sync(right, b + col * k + i, k);
    wmma::mma_sync(sum, left, right, sum);
  }
  wmma::store_matrix_sync(d + row * n + col, sum, n, wmma::mem_row_major);
}
