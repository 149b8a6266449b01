// c = a * b, row-major: a is m x k, b is k x n, c is m x n. Blocks of 16 x 16 threads; the grid covers n in x and m
// in y. Each block walks along k in tiles of 16 x 16 that its threads load together into shared memory; outside is
// zero.
#define TILE 16

extern "C" __global__ void matmul(const float *a, const float *b, float *c, unsigned m, unsigned n, unsigned k)
{
    __shared__ float a_tile[TILE][TILE];
    __shared__ float b_tile[TILE][TILE];

    unsigned x = threadIdx.x, y = threadIdx.y;
    unsigned row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
    float sum = 0.0f;
    for (unsigned start = 0; start < k; start += TILE) {
        a_tile[y][x] = row < m && start + x < k ? a[row * k + start + x] : 0.0f;
        b_tile[y][x] = start + y < k && column < n ? b[(start + y) * n + column] : 0.0f;
        __syncthreads();
        for (unsigned i = 0; i < TILE; i++)
            sum = fmaf(a_tile[y][i], b_tile[i][x], sum);
        __syncthreads();
    }
    if (row < m && column < n)
        c[row * n + column] = sum;
}
