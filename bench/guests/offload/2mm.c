// D = alpha A B C + beta D.
#include "program.h"

double A[1600][2200], B[2200][1800], C[1800][2400], D[1600][2400], product[1600][1800];

void EXPORT(init)(int ni, int nj, int nk, int nl)
{
    for (int i = 0; i < ni; i++)
        for (int k = 0; k < nk; k++)
            A[i][k] = sample(i * nk + k, 1);
    for (int k = 0; k < nk; k++)
        for (int j = 0; j < nj; j++)
            B[k][j] = sample(k * nj + j, 2);
    for (int j = 0; j < nj; j++)
        for (int l = 0; l < nl; l++)
            C[j][l] = sample(j * nl + l, 3);
    for (int i = 0; i < ni; i++)
        for (int l = 0; l < nl; l++)
            D[i][l] = sample(i * nl + l, 4);
}

void EXPORT(run)(int ni, int nj, int nk, int nl)
{
    const double alpha = 1.5, beta = 1.2;
    for (int i = 0; i < ni; i++)
        for (int j = 0; j < nj; j++) {
            product[i][j] = 0;
            for (int k = 0; k < nk; k++)
                product[i][j] += alpha * A[i][k] * B[k][j];
        }
    for (int i = 0; i < ni; i++)
        for (int l = 0; l < nl; l++) {
            D[i][l] *= beta;
            for (int j = 0; j < nj; j++)
                D[i][l] += product[i][j] * C[j][l];
        }
}
