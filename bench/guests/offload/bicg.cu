#include "program.cuh"

extern "C" double A[2200][1900], s[1900], q[2200], p[1900], r[2200];

static __global__ void columns(int m, int n, double (*A)[1900], double *r, double *s)
{
    int j = X;
    if (j < m) {
        double sum = 0;
        for (int i = 0; i < n; i++)
            sum += r[i] * A[i][j];
        s[j] = sum;
    }
}

static __global__ void rows(int m, int n, double (*A)[1900], double *p, double *q)
{
    int i = X;
    if (i < n) {
        double sum = 0;
        for (int j = 0; j < m; j++)
            sum += A[i][j] * p[j];
        q[i] = sum;
    }
}

KERNELS(int m, int n)
{
    OnDevice a(A), ds(s), dq(q), dp(p), dr(r);
    return timed([&] {
        columns<<<line(m), LINE>>>(m, n, a, dr, ds);
        rows<<<line(n), LINE>>>(m, n, a, dp, dq);
    });
}
