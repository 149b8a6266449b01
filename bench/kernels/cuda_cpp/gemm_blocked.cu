// C = A * B, row-major: tiles of 128x128 in shared memory, 8x8 in the registers of each of 256 threads.
// Sides are multiples of 128, k is a multiple of 8.
#define BM 128
#define BN 128
#define BK 8

extern "C" __global__ void __launch_bounds__(256)
gemm_blocked(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int n, int k)
{
    __shared__ __align__(16) float as[BK][BM];
    __shared__ __align__(16) float bs[BK][BN];
    int tid = threadIdx.x;
    int tx = tid % 16, ty = tid / 16;
    const float* pa = a + (blockIdx.y * BM + tid / 2) * k + tid % 2 * 4;
    const float* pb = b + tid / 32 * n + blockIdx.x * BN + tid % 32 * 4;
    float sum[8][8] = {};
    for (int tile = 0; tile < k; tile += BK) {
        float4 va = *reinterpret_cast<const float4*>(pa + tile);
        float4 vb = *reinterpret_cast<const float4*>(pb + tile * n);
        int kk = tid % 2 * 4;
        as[kk + 0][tid / 2] = va.x;
        as[kk + 1][tid / 2] = va.y;
        as[kk + 2][tid / 2] = va.z;
        as[kk + 3][tid / 2] = va.w;
        *reinterpret_cast<float4*>(&bs[tid / 32][tid % 32 * 4]) = vb;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < BK; ++i) {
            float ra[8], rb[8];
            *reinterpret_cast<float4*>(&ra[0]) = *reinterpret_cast<const float4*>(&as[i][ty * 8]);
            *reinterpret_cast<float4*>(&ra[4]) = *reinterpret_cast<const float4*>(&as[i][ty * 8 + 4]);
            *reinterpret_cast<float4*>(&rb[0]) = *reinterpret_cast<const float4*>(&bs[i][tx * 8]);
            *reinterpret_cast<float4*>(&rb[4]) = *reinterpret_cast<const float4*>(&bs[i][tx * 8 + 4]);
#pragma unroll
            for (int y = 0; y < 8; ++y)
#pragma unroll
                for (int x = 0; x < 8; ++x) sum[y][x] += ra[y] * rb[x];
        }
        __syncthreads();
    }
    float* pc = c + (blockIdx.y * BM + ty * 8) * n + blockIdx.x * BN + tx * 8;
#pragma unroll
    for (int y = 0; y < 8; ++y) {
        *reinterpret_cast<float4*>(pc + y * n) = make_float4(sum[y][0], sum[y][1], sum[y][2], sum[y][3]);
        *reinterpret_cast<float4*>(pc + y * n + 4) = make_float4(sum[y][4], sum[y][5], sum[y][6], sum[y][7]);
    }
}
