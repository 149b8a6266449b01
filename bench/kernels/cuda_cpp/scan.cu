// Inclusive sums within each block of 1024 numbers, 256 threads of 4 each, by warp shuffles; and each block's total.
extern "C" __global__ void __launch_bounds__(256)
scan(const int4* __restrict__ in, int4* __restrict__ out, int* __restrict__ totals)
{
    __shared__ int warps[8];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int4 v = in[blockIdx.x * 256 + threadIdx.x];
    v.y += v.x;
    v.z += v.y;
    v.w += v.z;
    int sum = v.w;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
        int below = __shfl_up_sync(0xffffffffu, sum, offset);
        if (lane >= offset) sum += below;
    }
    if (lane == 31) warps[warp] = sum;
    __syncthreads();
    if (warp == 0) {
        int total = lane < 8 ? warps[lane] : 0;
#pragma unroll
        for (int offset = 1; offset < 8; offset *= 2) {
            int below = __shfl_up_sync(0xffffffffu, total, offset);
            if (lane >= offset) total += below;
        }
        if (lane < 8) warps[lane] = total;
    }
    __syncthreads();
    int before = sum - v.w + (warp > 0 ? warps[warp - 1] : 0);
    out[blockIdx.x * 256 + threadIdx.x] = make_int4(v.x + before, v.y + before, v.z + before, v.w + before);
    if (threadIdx.x == 255) totals[blockIdx.x] = before + v.w;
}
