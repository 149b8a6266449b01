// sm_90: a cluster of blocks that read each other's shared memory, and a bulk copy that completes on an mbarrier.
#include <cooperative_groups.h>
#include <cuda/barrier>

namespace cg = cooperative_groups;

extern "C" __global__ void __cluster_dims__(2, 1, 1) exchange(const float* __restrict__ in, float* __restrict__ out)
{
    __shared__ float mine[128];
    auto cluster = cg::this_cluster();
    mine[threadIdx.x] = in[blockIdx.x * 128 + threadIdx.x];
    cluster.sync();
    out[blockIdx.x * 128 + threadIdx.x] = cluster.map_shared_rank(mine, cluster.block_rank() ^ 1)[threadIdx.x];
    cluster.sync();
}

extern "C" __global__ void bulk_copy(const float* __restrict__ in, float* __restrict__ out)
{
    __shared__ alignas(128) float tile[256];
#pragma nv_diag_suppress static_var_with_dynamic_init
    __shared__ cuda::barrier<cuda::thread_scope_block> ready;
    if (threadIdx.x == 0) {
        init(&ready, blockDim.x);
        cuda::device::experimental::fence_proxy_async_shared_cta();
    }
    __syncthreads();
    cuda::barrier<cuda::thread_scope_block>::arrival_token token;
    if (threadIdx.x == 0) {
        cuda::device::memcpy_async_tx(tile, in + blockIdx.x * 256, cuda::aligned_size_t<16>(sizeof(tile)), ready);
        token = cuda::device::barrier_arrive_tx(ready, 1, sizeof(tile));
    } else {
        token = ready.arrive();
    }
    ready.wait(std::move(token));
    out[blockIdx.x * 256 + threadIdx.x] = tile[255 - threadIdx.x];
}
