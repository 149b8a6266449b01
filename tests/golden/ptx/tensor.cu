// Tensor cores, asynchronous copies, half and bfloat16 arithmetic. From sm_80 on.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_pipeline.h>
#include <mma.h>
using namespace nvcuda;

extern "C" __global__ void wmma_tile(const half* a, const half* b, float* c) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
    wmma::fill_fragment(fc, 0.0f);
    wmma::load_matrix_sync(fa, a, 16);
    wmma::load_matrix_sync(fb, b, 16);
    wmma::mma_sync(fc, fa, fb, fc);
    wmma::store_matrix_sync(c, fc, 16, wmma::mem_row_major);
}

extern "C" __global__ void mma_inline(const unsigned* a, const unsigned* b, float4* c) {
    float4 d = c[threadIdx.x];
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d.x), "+f"(d.y), "+f"(d.z), "+f"(d.w)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    c[threadIdx.x] = d;
}

extern "C" __global__ void staged(const float4* in, float4* out) {
    __shared__ float4 tile[128];
    __pipeline_memcpy_async(&tile[threadIdx.x], &in[threadIdx.x], 16);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
    out[threadIdx.x] = tile[127 - threadIdx.x];
}

extern "C" __global__ void halves(__half2* h, __nv_bfloat162* b, int n) {
    int i = threadIdx.x;
    if (i < n) {
        h[i] = __hfma2(h[i], h[i], __float2half2_rn(0.5f));
        b[i] = __hmul2(b[i], __float2bfloat162_rn(1.5f));
    }
}

extern "C" __global__ void packed(unsigned long long* x) {
    unsigned lo, hi;
    asm("{\n\t.reg .pred p;\n\tsetp.ne.u64 p, %2, 0;\n\t@p mov.b64 {%0, %1}, %2;\n\t@!p mov.b64 {%1, %0}, %2;\n\t}"
        : "=r"(lo), "=r"(hi) : "l"(x[0]));
    asm("mov.b64 %0, {%1, %2};" : "=l"(x[1]) : "r"(hi), "r"(lo));
}
