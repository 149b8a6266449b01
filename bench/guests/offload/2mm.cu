#include "program.cuh"

extern "C" double A[1600][2200], B[2200][1800], C[1800][2400], D[1600][2400], product[1600][1800];

static __global__ void first(int ni, int nj, int nk, double (*A)[2200], double (*B)[1800], double (*product)[1800])
{
    const double alpha = 1.5;
    int i = Y, j = X;
    if (i < ni && j < nj) {
        double sum = 0;
        for (int k = 0; k < nk; k++)
            sum += alpha * A[i][k] * B[k][j];
        product[i][j] = sum;
    }
}

static __global__ void second(int ni, int nj, int nl, double (*product)[1800], double (*C)[2400], double (*D)[2400])
{
    const double beta = 1.2;
    int i = Y, l = X;
    if (i < ni && l < nl) {
        double sum = D[i][l] * beta;
        for (int j = 0; j < nj; j++)
            sum += product[i][j] * C[j][l];
        D[i][l] = sum;
    }
}

KERNELS(int ni, int nj, int nk, int nl)
{
    OnDevice a(A), b(B), c(C), d(D), p(product);
    return timed([&] {
        first<<<tiles(nj, ni), TILE>>>(ni, nj, nk, a, b, p);
        second<<<tiles(nl, ni), TILE>>>(ni, nj, nl, p, c, d);
    });
}
