#include "program.cuh"

extern "C" double A[1900][2200], x[2200], y[2200], product[1900];

static __global__ void rows(int m, int n, double (*A)[2200], double *x, double *product)
{
    int i = X;
    if (i < m) {
        double sum = 0;
        for (int j = 0; j < n; j++)
            sum += A[i][j] * x[j];
        product[i] = sum;
    }
}

static __global__ void columns(int m, int n, double (*A)[2200], double *y, double *product)
{
    int j = X;
    if (j < n) {
        double sum = 0;
        for (int i = 0; i < m; i++)
            sum += A[i][j] * product[i];
        y[j] = sum;
    }
}

KERNELS(int m, int n)
{
    OnDevice a(A), dx(x), dy(y), p(product);
    return timed([&] {
        rows<<<line(m), LINE>>>(m, n, a, dx, p);
        columns<<<line(n), LINE>>>(m, n, a, dy, p);
    });
}
