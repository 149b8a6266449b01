// Correlations of m columns.
#include "program.h"

double data[3000][2600], corr[2600][2600], mean[2600], deviation[2600];

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
    for (int j = 0; j < m; j++) {
        deviation[j] = 0;
        for (int i = 0; i < n; i++)
            deviation[j] += (data[i][j] - mean[j]) * (data[i][j] - mean[j]);
        deviation[j] /= n;
        deviation[j] = __builtin_sqrt(deviation[j]);
        deviation[j] = deviation[j] <= 0.1 ? 1.0 : deviation[j];
    }
    for (int i = 0; i < n; i++)
        for (int j = 0; j < m; j++) {
            data[i][j] -= mean[j];
            data[i][j] /= __builtin_sqrt((double)n) * deviation[j];
        }
    for (int i = 0; i < m - 1; i++) {
        corr[i][i] = 1;
        for (int j = i + 1; j < m; j++) {
            corr[i][j] = 0;
            for (int k = 0; k < n; k++)
                corr[i][j] += data[k][i] * data[k][j];
            corr[j][i] = corr[i][j];
        }
    }
    corr[m - 1][m - 1] = 1;
}
