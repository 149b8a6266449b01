// The factors of A = L U, in its place.
#include "program.h"

double A[4000][4000];

void EXPORT(init)(int n)
{
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++)
            A[i][j] = sample(i * n + j, 1);
        A[i][i] += n;
    }
}

void EXPORT(run)(int n)
{
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < i; j++) {
            for (int k = 0; k < j; k++)
                A[i][j] -= A[i][k] * A[k][j];
            A[i][j] /= A[j][j];
        }
        for (int j = i; j < n; j++)
            for (int k = 0; k < i; k++)
                A[i][j] -= A[i][k] * A[k][j];
    }
}
