// C = A * B: halves multiplied, floats summed, through nvcuda::wmma; a 64x64 tile a block of four warps, each 32x32.
#include <mma.h>

using namespace nvcuda;

extern "C" __global__ void __launch_bounds__(128)
gemm_wmma(const half* __restrict__ a, const half* __restrict__ b, float* __restrict__ c, int n, int k)
{
    __shared__ __align__(32) half as[64][32 + 16];
    __shared__ __align__(32) half bs[32][64 + 16];
    int warp = threadIdx.x / 32, wy = warp / 2 * 32, wx = warp % 2 * 32;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum[2][2];
    for (int y = 0; y < 2; ++y)
        for (int x = 0; x < 2; ++x) wmma::fill_fragment(sum[y][x], 0.0f);
    for (int tile = 0; tile < k; tile += 32) {
        for (int i = threadIdx.x; i < 64 * 4; i += 128) {
            int ay = i / 4, ax = i % 4 * 8, by = i / 8, bx = i % 8 * 8;
            *reinterpret_cast<uint4*>(&as[ay][ax]) =
                *reinterpret_cast<const uint4*>(a + (blockIdx.y * 64 + ay) * k + tile + ax);
            *reinterpret_cast<uint4*>(&bs[by][bx]) =
                *reinterpret_cast<const uint4*>(b + (tile + by) * n + blockIdx.x * 64 + bx);
        }
        __syncthreads();
        for (int kk = 0; kk < 32; kk += 16) {
            wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa[2];
            wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> fb[2];
            for (int i = 0; i < 2; ++i) {
                wmma::load_matrix_sync(fa[i], &as[wy + i * 16][kk], 48);
                wmma::load_matrix_sync(fb[i], &bs[kk][wx + i * 16], 80);
            }
            for (int y = 0; y < 2; ++y)
                for (int x = 0; x < 2; ++x) wmma::mma_sync(sum[y][x], fa[y], fb[x], sum[y][x]);
        }
        __syncthreads();
    }
    float* tile_c = c + (blockIdx.y * 64 + wy) * n + blockIdx.x * 64 + wx;
    for (int y = 0; y < 2; ++y)
        for (int x = 0; x < 2; ++x)
            wmma::store_matrix_sync(tile_c + y * 16 * n + x * 16, sum[y][x], n, wmma::mem_row_major);
}
