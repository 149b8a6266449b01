// The Cholesky factor of A, in its lower triangle.
#include "program.h"

double A[4000][4000];

void EXPORT(init)(int n)
{
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++)
            A[i][j] = sample(i < j ? i * n + j : j * n + i, 1);
        A[i][i] += n;
    }
}

void EXPORT(run)(int n)
{
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < i; j++) {
            for (int k = 0; k < j; k++)
                A[i][j] -= A[i][k] * A[j][k];
            A[i][j] /= A[j][j];
        }
        for (int k = 0; k < i; k++)
            A[i][i] -= A[i][k] * A[i][k];
        A[i][i] = __builtin_sqrt(A[i][i]);
    }
}
