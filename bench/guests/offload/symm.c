// C = alpha A B + beta C with a symmetric A, of which the lower triangle is there.
#include "program.h"

double A[2000][2000], B[2000][2600], C[2000][2600];

void EXPORT(init)(int m, int n)
{
    for (int i = 0; i < m; i++) {
        for (int j = 0; j < n; j++) {
            B[i][j] = sample(i * n + j, 1);
            C[i][j] = sample(i * n + j, 2);
        }
        for (int k = 0; k <= i; k++)
            A[i][k] = sample(i * m + k, 3);
    }
}

void EXPORT(run)(int m, int n)
{
    const double alpha = 1.5, beta = 1.2;
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int k = 0; k < i; k++) {
                C[k][j] += alpha * B[i][j] * A[i][k];
                sum += B[k][j] * A[i][k];
            }
            C[i][j] = beta * C[i][j] + alpha * B[i][j] * A[i][i] + alpha * sum;
        }
}
