// Producer and consumer warps that meet at mbarriers, through <cuda/barrier>.
#include <cooperative_groups.h>
#include <cuda/barrier>

#pragma nv_diag_suppress static_var_with_dynamic_init  // init() does it

using barrier = cuda::barrier<cuda::thread_scope_block>;

// A block of 64: the first warp produces in[i] * 2, the second one adds up what it finds, over `rounds` rounds.
extern "C" __global__ void barrier_ring(const int *in, int *out, int rounds) {
  __shared__ barrier full, empty;
  __shared__ int slots[32];
  int lane = threadIdx.x % 32;
  bool producer = threadIdx.x < 32;
  if (threadIdx.x == 0) {
    init(&full, 64);
    init(&empty, 64);
  }
  __syncthreads();
  int sum = 0;
  for (int r = 0; r < rounds; r++) {
    if (producer) {
      if (r > 0) empty.arrive_and_wait();
      slots[lane] = in[r * 32 + lane] * 2;
      (void)full.arrive();
    } else {
      full.arrive_and_wait();
      sum += slots[31 - lane];
      if (r + 1 < rounds) (void)empty.arrive();
    }
  }
  if (!producer) out[lane] = sum;
}

// out[i] = in[63 - i]: copies that arrive at the barrier by themselves (cuda::memcpy_async).
extern "C" __global__ void barrier_copy(const int *in, int *out) {
  __shared__ barrier ready;
  __shared__ __align__(16) int slots[64];
  if (threadIdx.x == 0) init(&ready, blockDim.x);
  __syncthreads();
  cuda::memcpy_async(&slots[threadIdx.x], &in[threadIdx.x], cuda::aligned_size_t<4>(4), ready);
  ready.arrive_and_wait();
  out[threadIdx.x] = slots[63 - threadIdx.x];
}
