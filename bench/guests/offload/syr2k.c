// The lower triangle of C = alpha A B' + alpha B A' + beta C.
#include "program.h"

double A[2600][2000], B[2600][2000], C[2600][2600];

void EXPORT(init)(int m, int n)
{
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < m; k++) {
            A[i][k] = sample(i * m + k, 1);
            B[i][k] = sample(i * m + k, 2);
        }
        for (int j = 0; j < n; j++)
            C[i][j] = sample(i * n + j, 3);
    }
}

void EXPORT(run)(int m, int n)
{
    const double alpha = 1.5, beta = 1.2;
    for (int i = 0; i < n; i++) {
        for (int j = 0; j <= i; j++)
            C[i][j] *= beta;
        for (int k = 0; k < m; k++)
            for (int j = 0; j <= i; j++)
                C[i][j] += A[j][k] * alpha * B[i][k] + B[j][k] * alpha * A[i][k];
    }
}
