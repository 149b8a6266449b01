#include "program.cuh"

extern "C" double A[4000][4000], x1[4000], x2[4000], y2[4000];
extern double first[4000] __asm__("y1");  // C's library has a function of that name

static __global__ void rows(int n, double (*A)[4000], double *x, double *y)
{
    int i = X;
    if (i < n) {
        double sum = x[i];
        for (int j = 0; j < n; j++)
            sum += A[i][j] * y[j];
        x[i] = sum;
    }
}

static __global__ void columns(int n, double (*A)[4000], double *x, double *y)
{
    int i = X;
    if (i < n) {
        double sum = x[i];
        for (int j = 0; j < n; j++)
            sum += A[j][i] * y[j];
        x[i] = sum;
    }
}

KERNELS(int n)
{
    OnDevice a(A), d1(x1), d2(x2), e1(first), e2(y2);
    return timed([&] {
        rows<<<line(n), LINE>>>(n, a, d1, e1);
        columns<<<line(n), LINE>>>(n, a, d2, e2);
    });
}
