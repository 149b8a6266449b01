// Arithmetic of halves, bfloat16 pairs and bytes of floating point.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

extern "C" __global__ void halves(const __half2* __restrict__ a, const __half2* __restrict__ b, __half2* __restrict__ out,
                                  int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    __half2 sum = __hfma2(a[i], b[i], __float2half2_rn(0.5f));
    sum = __hadd2(h2exp(sum), __hmax2(a[i], __hneg2(b[i])));
    if (__hbgt2(a[i], b[i])) sum = h2sqrt(__habs2(sum));
    out[i] = __hmul2_sat(sum, __halves2half2(__int2half_rn(i % 5), __low2half(a[i])));
}

extern "C" __global__ void bfloats(const __nv_bfloat162* __restrict__ a, const float2* __restrict__ b,
                                   __nv_bfloat162* __restrict__ out, __nv_bfloat162* total, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    __nv_bfloat162 narrow = __float22bfloat162_rn(b[i]);
    out[i] = __hfma2_relu(a[i], narrow, __floats2bfloat162_rn(1.0f, -1.0f));
    atomicAdd(total, narrow);
}

extern "C" __global__ void bytes(const float4* __restrict__ in, __nv_fp8x4_e4m3* __restrict__ out, float4* __restrict__ back,
                                 int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    out[i] = __nv_fp8x4_e4m3(in[i]);
    back[i] = float4(out[i]);
}
