#include "program.cuh"

extern "C" double A[2000][2600], B[2600][2300], C[2000][2300];

static __global__ void product(int ni, int nj, int nk, double (*A)[2600], double (*B)[2300], double (*C)[2300])
{
    const double alpha = 1.5, beta = 1.2;
    int i = Y, j = X;
    if (i < ni && j < nj) {
        double sum = C[i][j] * beta;
        for (int k = 0; k < nk; k++)
            sum += alpha * A[i][k] * B[k][j];
        C[i][j] = sum;
    }
}

KERNELS(int ni, int nj, int nk)
{
    OnDevice a(A), b(B), c(C);
    return timed([&] { product<<<tiles(nj, ni), TILE>>>(ni, nj, nk, a, b, c); });
}
