#include "program.cuh"

extern "C" double A[2000][2000], B[2000][2600], C[2000][2600];

static __global__ void product(int m, int n, double (*A)[2000], double (*B)[2600], double (*C)[2600])
{
    const double alpha = 1.5, beta = 1.2;
    int i = Y, j = X;
    if (i < m && j < n) {
        double sum = 0;
        for (int k = 0; k < i; k++)
            sum += B[k][j] * A[i][k];
        double value = beta * C[i][j] + alpha * B[i][j] * A[i][i] + alpha * sum;
        for (int k = i + 1; k < m; k++)
            value += alpha * B[k][j] * A[k][i];
        C[i][j] = value;
    }
}

KERNELS(int m, int n)
{
    OnDevice a(A), b(B), c(C);
    return timed([&] { product<<<tiles(n, m), TILE>>>(m, n, a, b, c); });
}
