// Functions that are not inlined: structures by value, pointers into the caller's frame, recursion.
struct Pair {
    double value;
    int index;
};

__device__ __noinline__ Pair larger(Pair a, Pair b) { return a.value >= b.value ? a : b; }

__device__ __noinline__ void swap(int* a, int* b)
{
    int c = *a;
    *a = *b;
    *b = c;
}

extern "C" __global__ void largest(const double* __restrict__ in, double* value, int* index, int n)
{
    Pair best = {in[0], 0};
    for (int i = 1; i < n; ++i) best = larger(best, Pair{in[i], i});
    *value = best.value;
    *index = best.index;
}

extern "C" __global__ void permute(int* __restrict__ data, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int words[5];
    for (int j = 0; j < 5; ++j) words[j] = data[i * 5 + j];
    for (int j = 0; j < 5; ++j) swap(&words[j], &words[(j * 2 + i) % 5]);
    for (int j = 0; j < 5; ++j) data[i * 5 + j] = words[j];
}
