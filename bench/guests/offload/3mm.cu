#include "program.cuh"

extern "C" double A[1600][2000], B[2000][1800], C[1800][2400], D[2400][2200];
extern "C" double E[1600][1800], F[1800][2200], G[1600][2200];

template <int K, int N>
static __global__ void product(int ni, int nj, int nk, double (*a)[K], double (*b)[N], double (*c)[N])
{
    int i = Y, j = X;
    if (i < ni && j < nj) {
        double sum = 0;
        for (int k = 0; k < nk; k++)
            sum += a[i][k] * b[k][j];
        c[i][j] = sum;
    }
}

KERNELS(int ni, int nj, int nk, int nl, int nm)
{
    OnDevice a(A), b(B), c(C), d(D), e(E), f(F), g(G);
    return timed([&] {
        product<2000, 1800><<<tiles(nj, ni), TILE>>>(ni, nj, nk, a, b, e);
        product<2400, 2200><<<tiles(nl, nj), TILE>>>(nj, nl, nm, c, d, f);
        product<1800, 2200><<<tiles(nl, ni), TILE>>>(ni, nl, nj, e, f, g);
    });
}
