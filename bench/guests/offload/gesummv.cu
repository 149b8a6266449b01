#include "program.cuh"

extern "C" double A[2800][2800], B[2800][2800], x[2800], y[2800], product[2800];

static __global__ void rows(int n, double (*A)[2800], double (*B)[2800], double *x, double *y, double *product)
{
    const double alpha = 1.5, beta = 1.2;
    int i = X;
    if (i < n) {
        double a = 0, b = 0;
        for (int j = 0; j < n; j++) {
            a = A[i][j] * x[j] + a;
            b = B[i][j] * x[j] + b;
        }
        product[i] = a;
        y[i] = alpha * a + beta * b;
    }
}

KERNELS(int n)
{
    OnDevice a(A), b(B), dx(x), dy(y), p(product);
    return timed([&] { rows<<<line(n), LINE>>>(n, a, b, dx, dy, p); });
}
