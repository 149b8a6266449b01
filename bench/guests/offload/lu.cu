#include "program.cuh"

extern "C" double A[4000][4000];

static __global__ void divide(int k, int n, double (*A)[4000])
{
    int i = k + 1 + X;
    if (i < n)
        A[i][k] /= A[k][k];
}

static __global__ void subtract(int k, int n, double (*A)[4000])
{
    int i = k + 1 + Y, j = k + 1 + X;
    if (i < n && j < n)
        A[i][j] -= A[i][k] * A[k][j];
}

KERNELS(int n)
{
    OnDevice a(A);
    return timed([&] {
        for (int k = 0; k < n - 1; k++) {
            divide<<<line(n - k - 1), LINE>>>(k, n, a);
            subtract<<<tiles(n - k - 1, n - k - 1), TILE>>>(k, n, a);
        }
    });
}
