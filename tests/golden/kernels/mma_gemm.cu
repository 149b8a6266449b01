// D = A * B with the instructions themselves: ldmatrix from shared memory, mma.m16n8k16, stmatrix-free epilogue.
// One block of 4 warps computes a tile of 32 by 16; each warp a tile of 16 by 8.
#include <cuda_fp16.h>

__device__ unsigned shared_address(const void *pointer) { return (unsigned)__cvta_generic_to_shared(pointer); }

// a: m by k, row-major; b: k by n, row-major; d: m by n, row-major. m: multiple of 32, n: of 16, k: of 16.
extern "C" __global__ void mma_f16(const half *a, const half *b, float *d, int n, int k) {
  __shared__ __align__(16) half left[32][24];   // 24: rows stay 16-byte aligned
  __shared__ __align__(16) half right[16][24];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int row = blockIdx.y * 32, col = blockIdx.x * 16;
  int warp_row = warp / 2 * 16, warp_col = warp % 2 * 8;
  float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  for (int i = 0; i < k; i += 16) {
    for (int j = threadIdx.x; j < 32 * 16; j += blockDim.x) left[j / 16][j % 16] = a[(row + j / 16) * k + i + j % 16];
    for (int j = threadIdx.x; j < 16 * 16; j += blockDim.x) right[j / 16][j % 16] = b[(i + j / 16) * n + col + j % 16];
    __syncthreads();
    unsigned x[4], y[2];
    unsigned from = shared_address(&left[warp_row + lane % 16][lane / 16 * 8]);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(from));
    from = shared_address(&right[lane % 16][warp_col]);
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];" : "=r"(y[0]), "=r"(y[1]) : "r"(from));
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
    __syncthreads();
  }
  for (int i = 0; i < 4; i++) {
    int r = row + warp_row + lane / 4 + i / 2 * 8, c = col + warp_col + lane % 4 * 2 + i % 2;
    d[r * n + c] = sum[i];
  }
}

// d = transposed 8 by 8 matrix of 16-bit elements, in registers.
extern "C" __global__ void transpose(const unsigned *a, unsigned *d) {
  unsigned x = a[threadIdx.x], y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  d[threadIdx.x] = y;
}
