// G = (A B) (C D).
#include "program.h"

double A[1600][2000], B[2000][1800], C[1800][2400], D[2400][2200];
double E[1600][1800], F[1800][2200], G[1600][2200];

void EXPORT(init)(int ni, int nj, int nk, int nl, int nm)
{
    for (int i = 0; i < ni; i++)
        for (int k = 0; k < nk; k++)
            A[i][k] = sample(i * nk + k, 1);
    for (int k = 0; k < nk; k++)
        for (int j = 0; j < nj; j++)
            B[k][j] = sample(k * nj + j, 2);
    for (int j = 0; j < nj; j++)
        for (int m = 0; m < nm; m++)
            C[j][m] = sample(j * nm + m, 3);
    for (int m = 0; m < nm; m++)
        for (int l = 0; l < nl; l++)
            D[m][l] = sample(m * nl + l, 4);
}

void EXPORT(run)(int ni, int nj, int nk, int nl, int nm)
{
    for (int i = 0; i < ni; i++)
        for (int j = 0; j < nj; j++) {
            E[i][j] = 0;
            for (int k = 0; k < nk; k++)
                E[i][j] += A[i][k] * B[k][j];
        }
    for (int j = 0; j < nj; j++)
        for (int l = 0; l < nl; l++) {
            F[j][l] = 0;
            for (int m = 0; m < nm; m++)
                F[j][l] += C[j][m] * D[m][l];
        }
    for (int i = 0; i < ni; i++)
        for (int l = 0; l < nl; l++) {
            G[i][l] = 0;
            for (int j = 0; j < nj; j++)
                G[i][l] += E[i][j] * F[j][l];
        }
}
