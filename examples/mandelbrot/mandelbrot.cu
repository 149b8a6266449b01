// counts[y * width + x] = iterations of z = z * z + c, from z = 0, until |z| > 2, at most limit.
// c spans -2.25 .. 0.75 across and -1.25 .. 1.25 down. Neighbouring threads leave the loop at different times.
extern "C" __global__ void mandelbrot(unsigned *counts, unsigned width, unsigned height, unsigned limit)
{
    unsigned x = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height)
        return;
    float c_re = -2.25f + 3.0f * ((float)x + 0.5f) / (float)width;
    float c_im = -1.25f + 2.5f * ((float)y + 0.5f) / (float)height;
    float re = 0.0f, im = 0.0f;
    unsigned count = 0;
    while (count < limit && re * re + im * im <= 4.0f) {
        float next = re * re - im * im + c_re;
        im = 2.0f * re * im + c_im;
        re = next;
        count++;
    }
    counts[y * width + x] = count;
}
