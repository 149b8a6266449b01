#include "program.cuh"

extern "C" double data[3000][2600], cov[2600][2600], mean[2600];

static __global__ void means(int m, int n, double (*data)[2600], double *mean)
{
    int j = X;
    if (j < m) {
        double sum = 0;
        for (int i = 0; i < n; i++)
            sum += data[i][j];
        mean[j] = sum / n;
    }
}

static __global__ void center(int m, int n, double (*data)[2600], double *mean)
{
    int i = Y, j = X;
    if (i < n && j < m)
        data[i][j] -= mean[j];
}

static __global__ void product(int m, int n, double (*data)[2600], double (*cov)[2600])
{
    int i = Y, j = X;
    if (i < m && i <= j && j < m) {
        double sum = 0;
        for (int k = 0; k < n; k++)
            sum += data[k][i] * data[k][j];
        cov[i][j] = cov[j][i] = sum / (n - 1.0);
    }
}

KERNELS(int m, int n)
{
    OnDevice d(data), c(cov), e(mean);
    return timed([&] {
        means<<<line(m), LINE>>>(m, n, d, e);
        center<<<tiles(m, n), TILE>>>(m, n, d, e);
        product<<<tiles(m, m), TILE>>>(m, n, d, c);
    });
}
