// One step of the heat equation on a grid; the edge is copied.
extern "C" __global__ void stencil5(const float* __restrict__ in, float* __restrict__ out, int width, int height,
                                    float k)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    int i = y * width + x;
    float centre = in[i];
    if (x > 0 && x < width - 1 && y > 0 && y < height - 1)
        centre += k * (in[i - 1] + in[i + 1] + in[i - width] + in[i + width] - 4.0f * centre);
    out[i] = centre;
}
