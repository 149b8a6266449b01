// output = input convolved with a 5 x 5 binomial blur, row-major width x height; outside the image is zero.
// Blocks of 16 x 16 threads load their 20 x 20 neighbourhood into shared memory.
#define TILE 16
#define RADIUS 2
#define SIDE (TILE + 2 * RADIUS)

__constant__ float weights[5] = {0.0625f, 0.25f, 0.375f, 0.25f, 0.0625f};

extern "C" __global__ void convolution(const float *input, float *output, int width, int height)
{
    __shared__ float tile[SIDE][SIDE];

    int left = blockIdx.x * TILE - RADIUS, top = blockIdx.y * TILE - RADIUS;
    for (int i = threadIdx.y * TILE + threadIdx.x; i < SIDE * SIDE; i += TILE * TILE) {
        int x = left + i % SIDE, y = top + i / SIDE;
        bool inside = x >= 0 && x < width && y >= 0 && y < height;
        tile[i / SIDE][i % SIDE] = inside ? input[y * width + x] : 0.0f;
    }
    __syncthreads();

    int x = blockIdx.x * TILE + threadIdx.x, y = blockIdx.y * TILE + threadIdx.y;
    if (x >= width || y >= height)
        return;
    float sum = 0.0f;
    for (int dy = 0; dy < 5; dy++)
        for (int dx = 0; dx < 5; dx++)
            sum = fmaf(weights[dy] * weights[dx], tile[threadIdx.y + dy][threadIdx.x + dx], sum);
    output[y * width + x] = sum;
}
