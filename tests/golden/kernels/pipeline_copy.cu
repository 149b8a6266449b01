// A double-buffered pipeline: while a block works on one stage, the next one is on its way (cp.async).
#include <cuda_pipeline.h>

#define STAGE 128  // floats, and threads

// out[i] = sum over stages s of (s + 1) * in[s * STAGE + STAGE - 1 - i]: every lane reads what another one copied.
extern "C" __global__ void pipeline_copy(const float4 *in, float *out, int stages) {
  __shared__ float4 buffer[2][STAGE / 4];
  int lane = threadIdx.x;
  float sum = 0.0f;
  if (lane < STAGE / 4) __pipeline_memcpy_async(&buffer[0][lane], &in[lane], 16);
  __pipeline_commit();
  for (int s = 0; s < stages; s++) {
    if (s + 1 < stages && lane < STAGE / 4) {
      __pipeline_memcpy_async(&buffer[(s + 1) % 2][lane], &in[(s + 1) * (STAGE / 4) + lane], 16);
    }
    __pipeline_commit();
    __pipeline_wait_prior(1);
    __syncthreads();
    sum += (s + 1) * ((const float *)buffer[s % 2])[STAGE - 1 - lane];
    __syncthreads();
  }
  out[lane] = sum;
}

// The same without its first __syncthreads: lanes read what others copied without knowing that it has arrived.
extern "C" __global__ void pipeline_race(const float4 *in, float *out) {
  __shared__ float4 buffer[STAGE / 4];
  int lane = threadIdx.x;
  if (lane < STAGE / 4) __pipeline_memcpy_async(&buffer[lane], &in[lane], 16);
  __pipeline_commit();
  __pipeline_wait_prior(0);
  out[lane] = ((const float *)buffer)[STAGE - 1 - lane];
}

// Without any wait.
extern "C" __global__ void pipeline_unwaited(const float4 *in, float *out) {
  __shared__ float4 buffer[STAGE / 4];
  int lane = threadIdx.x;
  if (lane < STAGE / 4) __pipeline_memcpy_async(&buffer[lane], &in[lane], 16);
  __pipeline_commit();
  __syncthreads();
  out[lane] = ((const float *)buffer)[STAGE - 1 - lane];
}
