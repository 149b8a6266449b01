// C = alpha A B + beta C.
#include "program.h"

double A[2000][2600], B[2600][2300], C[2000][2300];

void EXPORT(init)(int ni, int nj, int nk)
{
    for (int i = 0; i < ni; i++)
        for (int k = 0; k < nk; k++)
            A[i][k] = sample(i * nk + k, 1);
    for (int k = 0; k < nk; k++)
        for (int j = 0; j < nj; j++)
            B[k][j] = sample(k * nj + j, 2);
    for (int i = 0; i < ni; i++)
        for (int j = 0; j < nj; j++)
            C[i][j] = sample(i * nj + j, 3);
}

void EXPORT(run)(int ni, int nj, int nk)
{
    const double alpha = 1.5, beta = 1.2;
    for (int i = 0; i < ni; i++) {
        for (int j = 0; j < nj; j++)
            C[i][j] *= beta;
        for (int k = 0; k < nk; k++)
            for (int j = 0; j < nj; j++)
                C[i][j] += alpha * A[i][k] * B[k][j];
    }
}
