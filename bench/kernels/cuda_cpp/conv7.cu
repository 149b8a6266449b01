// 7x7 convolution with zeros outside; the weights come by pointer.
#define RADIUS 3

extern "C" __global__ void conv7(const float* __restrict__ image, const float* __restrict__ weights,
                                 float* __restrict__ out, int width, int height)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    float sum = 0.0f;
    for (int dy = -RADIUS; dy <= RADIUS; ++dy) {
#pragma unroll
        for (int dx = -RADIUS; dx <= RADIUS; ++dx) {
            int xx = x + dx, yy = y + dy;
            if (xx >= 0 && xx < width && yy >= 0 && yy < height)
                sum += image[yy * width + xx] * weights[(dy + RADIUS) * (2 * RADIUS + 1) + dx + RADIUS];
        }
    }
    out[y * width + x] = sum;
}
