// Sums of doubles and maxima of floats by key, both through loops of compare-and-swap.
__device__ void add(double* to, double value)
{
    unsigned long long* word = reinterpret_cast<unsigned long long*>(to);
    unsigned long long seen = *word, expected;
    do {
        expected = seen;
        seen = atomicCAS(word, expected, __double_as_longlong(value + __longlong_as_double(expected)));
    } while (seen != expected);
}

__device__ void raise(float* to, float value)
{
    int* word = reinterpret_cast<int*>(to);
    int seen = *word;
    while (__int_as_float(seen) < value) {
        int expected = seen;
        seen = atomicCAS(word, expected, __float_as_int(value));
        if (seen == expected) break;
    }
}

extern "C" __global__ void cas_loops(const int* __restrict__ keys, const float* __restrict__ values, double* sums,
                                     float* maxima, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    add(&sums[keys[i]], values[i]);
    raise(&maxima[keys[i]], values[i]);
}
