// libcu++: copies that arrive at a barrier of the block, and a pipeline of two stages.
#include <cooperative_groups.h>
#include <cuda/barrier>
#include <cuda/pipeline>

namespace cg = cooperative_groups;

extern "C" __global__ void barrier_copy(const float* __restrict__ in, float* __restrict__ out)
{
    __shared__ alignas(16) float tile[256];
#pragma nv_diag_suppress static_var_with_dynamic_init
    __shared__ cuda::barrier<cuda::thread_scope_block> ready;
    auto block = cg::this_thread_block();
    if (block.thread_rank() == 0) init(&ready, block.size());
    block.sync();
    cuda::memcpy_async(block, tile, in + blockIdx.x * 256, cuda::aligned_size_t<16>(sizeof(tile)), ready);
    ready.arrive_and_wait();
    out[blockIdx.x * 256 + threadIdx.x] = tile[255 - threadIdx.x];
}

extern "C" __global__ void staged_sum(const float* __restrict__ in, float* __restrict__ out, int stages)
{
    __shared__ alignas(16) float tiles[2][256];
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    auto block = cg::this_thread_block();
    auto pipe = cuda::make_pipeline(block, &state);
    float sum = 0.0f;
    for (int load = 0, stage = 0; stage < stages; ++stage) {
        for (; load < stages && load < stage + 2; ++load) {
            pipe.producer_acquire();
            cuda::memcpy_async(block, tiles[load % 2], in + load * 256, cuda::aligned_size_t<16>(1024), pipe);
            pipe.producer_commit();
        }
        pipe.consumer_wait();
        sum += tiles[stage % 2][255 - threadIdx.x];
        pipe.consumer_release();
    }
    out[threadIdx.x] = sum;
}
