#include "program.cuh"

extern "C" double A[200][200][200], B[200][200][200];

static __global__ void step(int n, double (*from)[200][200], double (*to)[200][200])
{
    int i = Z + 1, j = Y + 1, k = X + 1;
    if (i < n - 1 && j < n - 1 && k < n - 1)
        to[i][j][k] = 0.125 * (from[i + 1][j][k] - 2.0 * from[i][j][k] + from[i - 1][j][k]) +
                      0.125 * (from[i][j + 1][k] - 2.0 * from[i][j][k] + from[i][j - 1][k]) +
                      0.125 * (from[i][j][k + 1] - 2.0 * from[i][j][k] + from[i][j][k - 1]) + from[i][j][k];
}

KERNELS(int steps, int n)
{
    OnDevice a(A), b(B);
    return timed([&] {
        for (int t = 1; t <= steps; t++) {
            step<<<tiles(n - 2, n - 2, n - 2), TILE>>>(n, a, b);
            step<<<tiles(n - 2, n - 2, n - 2), TILE>>>(n, b, a);
        }
    });
}
