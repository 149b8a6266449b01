// B = alpha A' B with a lower triangular A whose diagonal is 1.
#include "program.h"

double A[2000][2000], B[2000][2600];

void EXPORT(init)(int m, int n)
{
    for (int i = 0; i < m; i++) {
        for (int k = 0; k < i; k++)
            A[i][k] = sample(i * m + k, 1);
        for (int j = 0; j < n; j++)
            B[i][j] = sample(i * n + j, 2);
    }
}

void EXPORT(run)(int m, int n)
{
    const double alpha = 1.5;
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            for (int k = i + 1; k < m; k++)
                B[i][j] += A[k][i] * B[k][j];
            B[i][j] = alpha * B[i][j];
        }
}
