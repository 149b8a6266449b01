// A radix-2 Fourier transform of 512 complex numbers in each block's dynamic shared memory, 256 threads.
extern __shared__ float2 points[];
__constant__ float direction = -1.0f;

extern "C" __global__ void fft(float2* data)
{
    int t = threadIdx.x;
    float2* mine = data + blockIdx.x * 512;
    points[__brev(t) >> 23] = mine[t];
    points[__brev(t + 256) >> 23] = mine[t + 256];
    for (int half = 1; half < 512; half *= 2) {
        __syncthreads();
        int low = t / half * half * 2 + t % half;
        float s, c;
        sincospif(direction * (t % half) / half, &s, &c);
        float2 a = points[low], b = points[low + half];
        float2 turned = make_float2(b.x * c - b.y * s, b.x * s + b.y * c);
        points[low] = make_float2(a.x + turned.x, a.y + turned.y);
        points[low + half] = make_float2(a.x - turned.x, a.y - turned.y);
    }
    __syncthreads();
    mine[t] = points[t];
    mine[t + 256] = points[t + 256];
}
