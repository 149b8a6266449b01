// The first kernel anyone writes, twice: scalar, and four elements at a time.
extern "C" __global__ void vector_add(const float* a, const float* b, float* c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}

extern "C" __global__ void vector_add4(const float4* a, const float4* b, float4* c, long long n) {
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += (long long)gridDim.x * blockDim.x) {
        float4 x = a[i], y = b[i];
        c[i] = make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
    }
}

// An addend that is a scalar of pointer size, and a byte pointer: only two of the three are addresses.
extern "C" __global__ void byte_offset(const char* base, long long offset, char* out) {
    out[threadIdx.x] = base[offset + threadIdx.x];
}

// Pointers that change places.
extern "C" __global__ void ping_pong(double* a, double* b, int steps) {
    for (int s = 0; s < steps; ++s) {
        b[threadIdx.x] = a[threadIdx.x] * 0.5;
        __syncthreads();
        double* t = a; a = b; b = t;
    }
}
