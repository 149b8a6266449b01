#include "program.cuh"

extern "C" double A[4000][4000];
extern "C" double u1[4000], v1[4000], u2[4000], v2[4000], w[4000], x[4000], y[4000], z[4000];

static __global__ void update(int n, double (*A)[4000], double *u1, double *v1, double *u2, double *v2)
{
    int i = Y, j = X;
    if (i < n && j < n)
        A[i][j] = A[i][j] + u1[i] * v1[j] + u2[i] * v2[j];
}

static __global__ void columns(int n, double (*A)[4000], double *x, double *y, double *z)
{
    const double beta = 1.2;
    int i = X;
    if (i < n) {
        double sum = x[i];
        for (int j = 0; j < n; j++)
            sum += beta * A[j][i] * y[j];
        x[i] = sum + z[i];
    }
}

static __global__ void rows(int n, double (*A)[4000], double *w, double *x)
{
    const double alpha = 1.5;
    int i = X;
    if (i < n) {
        double sum = w[i];
        for (int j = 0; j < n; j++)
            sum += alpha * A[i][j] * x[j];
        w[i] = sum;
    }
}

KERNELS(int n)
{
    OnDevice a(A), d1(u1), e1(v1), d2(u2), e2(v2), dw(w), dx(x), dy(y), dz(z);
    return timed([&] {
        update<<<tiles(n, n), TILE>>>(n, a, d1, e1, d2, e2);
        columns<<<line(n), LINE>>>(n, a, dx, dy, dz);
        rows<<<line(n), LINE>>>(n, a, dw, dx);
    });
}
