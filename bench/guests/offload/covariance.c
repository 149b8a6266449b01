// Covariances of m columns.
#include "program.h"

double data[3000][2600], cov[2600][2600], mean[2600];

void EXPORT(init)(int m, int n)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j < m; j++)
            data[i][j] = sample(i * m + j, 1);
}

void EXPORT(run)(int m, int n)
{
    for (int j = 0; j < m; j++) {
        mean[j] = 0;
        for (int i = 0; i < n; i++)
            mean[j] += data[i][j];
        mean[j] /= n;
    }
    for (int i = 0; i < n; i++)
        for (int j = 0; j < m; j++)
            data[i][j] -= mean[j];
    for (int i = 0; i < m; i++)
        for (int j = i; j < m; j++) {
            cov[i][j] = 0;
            for (int k = 0; k < n; k++)
                cov[i][j] += data[k][i] * data[k][j];
            cov[i][j] /= n - 1.0;
            cov[j][i] = cov[i][j];
        }
}
