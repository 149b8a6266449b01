// C = A * B: halves multiplied, floats summed, by ldmatrix and mma.sync, with cp.async into two stages.
// A 64x64 tile a block of four warps, each 32x32; sides are multiples of 64, k is a multiple of 32.
#include <cuda_fp16.h>
#include <cuda_pipeline.h>

#define BM 64
#define BN 64
#define BK 32
#define PAD 8

__device__ __forceinline__ void load_matrix(unsigned (&r)[4], const half* from)
{
    unsigned address = __cvta_generic_to_shared(from);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address));
}

__device__ __forceinline__ void load_transposed(unsigned (&r)[4], const half* from)
{
    unsigned address = __cvta_generic_to_shared(from);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address));
}

__device__ __forceinline__ void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

extern "C" __global__ void __launch_bounds__(128)
gemm_mma(const half* __restrict__ a, const half* __restrict__ b, float* __restrict__ c, int n, int k)
{
    __shared__ __align__(16) half as[2][BM][BK + PAD];
    __shared__ __align__(16) half bs[2][BK][BN + PAD];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int wy = warp / 2 * 32, wx = warp % 2 * 32;
    const half* ga = a + (size_t)blockIdx.y * BM * k;
    const half* gb = b + blockIdx.x * BN;

    auto fetch = [&](int stage, int tile) {
#pragma unroll
        for (int i = threadIdx.x; i < BM * BK / 8; i += 128) {
            int ay = i / 4, ax = i % 4 * 8, by = i / 8, bx = i % 8 * 8;
            __pipeline_memcpy_async(&as[stage][ay][ax], ga + ay * k + tile + ax, 16);
            __pipeline_memcpy_async(&bs[stage][by][bx], gb + (tile + by) * n + bx, 16);
        }
        __pipeline_commit();
    };

    float sum[2][4][4] = {};
    fetch(0, 0);
    int stage = 0;
    for (int tile = 0; tile < k; tile += BK, stage ^= 1) {
        if (tile + BK < k) {
            fetch(stage ^ 1, tile + BK);
            __pipeline_wait_prior(1);
        } else {
            __pipeline_wait_prior(0);
        }
        __syncthreads();
#pragma unroll
        for (int kk = 0; kk < BK; kk += 16) {
            unsigned fa[2][4], fb[2][4];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                load_matrix(fa[i], &as[stage][wy + i * 16 + lane % 16][kk + lane / 16 * 8]);
                load_transposed(fb[i], &bs[stage][kk + lane % 16][wx + i * 16 + lane / 16 * 8]);
            }
#pragma unroll
            for (int y = 0; y < 2; ++y)
#pragma unroll
                for (int x = 0; x < 4; ++x)
                    multiply(sum[y][x], fa[y], fb[x / 2][x % 2 * 2], fb[x / 2][x % 2 * 2 + 1]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int y = 0; y < 2; ++y)
#pragma unroll
        for (int x = 0; x < 4; ++x) {
            float* to = c + (size_t)(blockIdx.y * BM + wy + y * 16 + lane / 4) * n + blockIdx.x * BN + wx + x * 8 +
                        lane % 4 * 2;
            *reinterpret_cast<float2*>(to) = make_float2(sum[y][x][0], sum[y][x][1]);
            *reinterpret_cast<float2*>(to + 8 * n) = make_float2(sum[y][x][2], sum[y][x][3]);
        }
}
