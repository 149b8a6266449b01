// The factors of A = Q R by Gram and Schmidt's method.
#include "program.h"

double A[2000][2600], Q[2000][2600], R[2600][2600];

void EXPORT(init)(int m, int n)
{
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++)
            A[i][j] = 0.5 + sample(i * n + j, 1);
}

void EXPORT(run)(int m, int n)
{
    for (int k = 0; k < n; k++) {
        double norm = 0;
        for (int i = 0; i < m; i++)
            norm += A[i][k] * A[i][k];
        R[k][k] = __builtin_sqrt(norm);
        for (int i = 0; i < m; i++)
            Q[i][k] = A[i][k] / R[k][k];
        for (int j = k + 1; j < n; j++) {
            R[k][j] = 0;
            for (int i = 0; i < m; i++)
                R[k][j] += Q[i][k] * A[i][j];
            for (int i = 0; i < m; i++)
                A[i][j] = A[i][j] - Q[i][k] * R[k][j];
        }
    }
}
