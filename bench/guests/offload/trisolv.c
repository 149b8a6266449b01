// L x = b with a lower triangular L.
#include "program.h"

double L[4000][4000], b[4000], x[4000];

void EXPORT(init)(int n)
{
    for (int i = 0; i < n; i++) {
        b[i] = sample(i, 1);
        for (int j = 0; j < i; j++)
            L[i][j] = sample(i * n + j, 2);
        L[i][i] = n;
    }
}

void EXPORT(run)(int n)
{
    for (int i = 0; i < n; i++) {
        x[i] = b[i];
        for (int j = 0; j < i; j++)
            x[i] -= L[i][j] * x[j];
        x[i] = x[i] / L[i][i];
    }
}
