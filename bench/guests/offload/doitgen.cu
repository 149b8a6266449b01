#include "program.cuh"

extern "C" double A[250][220][270], C4[270][270], sum[270];

static double results[250][220][270];

static __global__ void product(int nq, int nr, int np, double (*A)[220][270], double (*C4)[270], double (*result)[220][270])
{
    int r = Z, q = Y, p = X;
    if (q < nq && p < np) {
        double sum = 0;
        for (int s = 0; s < np; s++)
            sum += A[r][q][s] * C4[s][p];
        result[r][q][p] = sum;
    }
}

static __global__ void back(int nq, int nr, int np, double (*A)[220][270], double *sum, double (*result)[220][270])
{
    int r = Z, q = Y, p = X;
    if (q < nq && p < np) {
        A[r][q][p] = result[r][q][p];
        if (r == nr - 1 && q == nq - 1)
            sum[p] = result[r][q][p];
    }
}

KERNELS(int nq, int nr, int np)
{
    OnDevice a(A), c(C4), s(sum), t(results);
    return timed([&] {
        product<<<tiles(np, nq, nr), TILE>>>(nq, nr, np, a, c, t);
        back<<<tiles(np, nq, nr), TILE>>>(nq, nr, np, a, s, t);
    });
}
