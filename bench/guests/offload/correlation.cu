#include "program.cuh"

extern "C" double data[3000][2600], corr[2600][2600], mean[2600], deviation[2600];

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

static __global__ void deviations(int m, int n, double (*data)[2600], double *mean, double *deviation)
{
    int j = X;
    if (j < m) {
        double sum = 0;
        for (int i = 0; i < n; i++)
            sum += (data[i][j] - mean[j]) * (data[i][j] - mean[j]);
        sum = sqrt(sum / n);
        deviation[j] = sum <= 0.1 ? 1.0 : sum;
    }
}

static __global__ void center(int m, int n, double (*data)[2600], double *mean, double *deviation)
{
    int i = Y, j = X;
    if (i < n && j < m)
        data[i][j] = (data[i][j] - mean[j]) / (sqrt((double)n) * deviation[j]);
}

static __global__ void product(int m, int n, double (*data)[2600], double (*corr)[2600])
{
    int i = Y, j = X;
    if (i < m && i == j)
        corr[i][i] = 1;
    if (i < j && j < m) {
        double sum = 0;
        for (int k = 0; k < n; k++)
            sum += data[k][i] * data[k][j];
        corr[i][j] = corr[j][i] = sum;
    }
}

KERNELS(int m, int n)
{
    OnDevice d(data), c(corr), e(mean), s(deviation);
    return timed([&] {
        means<<<line(m), LINE>>>(m, n, d, e);
        deviations<<<line(m), LINE>>>(m, n, d, e, s);
        center<<<tiles(m, n), TILE>>>(m, n, d, e, s);
        product<<<tiles(m, m), TILE>>>(m, n, d, c);
    });
}
