// Scoped atomics of libcu++: a ticket lock, a seqlock and a flag between blocks.
#include <cuda/atomic>

extern "C" __global__ void ticket_lock(unsigned* next, unsigned* serving, double* shared_sum, const double* in, int n)
{
    cuda::atomic_ref<unsigned, cuda::thread_scope_device> tickets(*next), turn(*serving);
    __shared__ double sum;
    if (threadIdx.x == 0) {
        sum = 0.0;
        for (int i = blockIdx.x; i < n; i += gridDim.x) sum += in[i];
        unsigned mine = tickets.fetch_add(1, cuda::memory_order_relaxed);
        while (turn.load(cuda::memory_order_acquire) != mine) __nanosleep(20);
        *shared_sum += sum;
        turn.store(mine + 1, cuda::memory_order_release);
    }
}

extern "C" __global__ void extremes(const long long* __restrict__ in, long long* low, unsigned long long* bits,
                                    float* highest, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    atomicMin(low, in[i]);
    atomicXor(bits, (unsigned long long)in[i]);
    cuda::atomic_ref<float, cuda::thread_scope_system> top(*highest);
    top.fetch_max((float)in[i], cuda::memory_order_relaxed);
}
