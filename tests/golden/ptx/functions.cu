// Functions that are not inlined, pointers to them, initialised tables, constants, structures by value, managed memory.
struct Params { float* data; int n; float scale[3]; };
struct Pair { double first; long long second; };

__constant__ float coefficients[8] = {1.0f, -0.5f, 0.25f, -0.125f};
__device__ int counter = 7;
__device__ int* counter_address = &counter;
__device__ float table[2][3] = {{1, 2}, {4, 5, 6}};
__managed__ unsigned managed_value = 3;
__device__ const char message[] = "not inlined";

__device__ __noinline__ float poly(float x, const float* c, int n) {
    float r = 0;
    for (int i = 0; i < n; ++i) r = fmaf(r, x, c[i]);
    return r;
}
__device__ __noinline__ Pair swap(Pair p) { return Pair{(double)p.second, (long long)p.first}; }
__device__ __noinline__ float square(float x) { return x * x; }
__device__ __noinline__ float cube(float x) { return x * x * x; }
__device__ float (*const operations[2])(float) = {square, cube};
__device__ __noinline__ void store(float* where, float what) { *where = what; }
__device__ __noinline__ int depth(int n) { return n < 2 ? n : depth(n - 1) + depth(n - 2); }

extern "C" __global__ void by_value(Params p, Pair q) {
    if (threadIdx.x < p.n) p.data[threadIdx.x] = p.scale[threadIdx.x % 3] * (float)swap(q).first;
}

extern "C" __global__ void indirect(float* out, const float* in, int which) {
    store(out + threadIdx.x, operations[which & 1](in[threadIdx.x]) + poly(in[0], coefficients, 8));
}

extern "C" __global__ void globals(int* out) {
    out[0] = *counter_address + (int)table[threadIdx.x & 1][2] + message[threadIdx.x] + depth(9) + managed_value;
    atomicAdd(&counter, 1);
}

extern "C" __global__ void local_array(double* out, const int* index) {
    double stack[16];
    for (int i = 0; i < 16; ++i) stack[i] = out[i];
    out[threadIdx.x] = stack[index[threadIdx.x] & 15];
}
