// Each row of a three-dimensional array times a matrix.
#include "program.h"

double A[250][220][270], C4[270][270], sum[270];

void EXPORT(init)(int nq, int nr, int np)
{
    for (int r = 0; r < nr; r++)
        for (int q = 0; q < nq; q++)
            for (int p = 0; p < np; p++)
                A[r][q][p] = sample((r * nq + q) * np + p, 1);
    for (int s = 0; s < np; s++)
        for (int p = 0; p < np; p++)
            C4[s][p] = sample(s * np + p, 2);
}

void EXPORT(run)(int nq, int nr, int np)
{
    for (int r = 0; r < nr; r++)
        for (int q = 0; q < nq; q++) {
            for (int p = 0; p < np; p++) {
                sum[p] = 0;
                for (int s = 0; s < np; s++)
                    sum[p] += A[r][q][s] * C4[s][p];
            }
            for (int p = 0; p < np; p++)
                A[r][q][p] = sum[p];
        }
}
