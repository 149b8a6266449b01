// Functions of the CUDA math library, with their slow paths.
extern "C" __global__ void math_f64(const double* __restrict__ in, double* __restrict__ out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double x = in[i];
    out[i] = sin(x) + exp(-x * x) + log1p(fabs(x)) + pow(fabs(x), 1.5) + erf(x) + cbrt(x) + fmod(x, 0.7) + atan2(x, 2.0);
}

extern "C" __global__ void math_f32(const float* __restrict__ in, float* __restrict__ out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float x = in[i], s, c;
    sincosf(x, &s, &c);
    out[i] = s * c + tanhf(x) + lgammaf(x) + powf(fabsf(x), 1.5f) + rintf(x) + floorf(x) + ldexpf(x, 3) + x / 3.1f +
             sqrtf(fabsf(x)) + rsqrtf(fabsf(x)) + copysignf(1.0f, x) + (isnan(x) ? 1.0f : 0.0f) + __fdividef(x, 7.0f);
}
