// y = A' (A x).
#include "program.h"

double A[1900][2200], x[2200], y[2200], product[1900];

void EXPORT(init)(int m, int n)
{
    for (int j = 0; j < n; j++)
        x[j] = 1 + sample(j, 1);
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++)
            A[i][j] = sample(i * n + j, 2);
}

void EXPORT(run)(int m, int n)
{
    for (int j = 0; j < n; j++)
        y[j] = 0;
    for (int i = 0; i < m; i++) {
        product[i] = 0;
        for (int j = 0; j < n; j++)
            product[i] = product[i] + A[i][j] * x[j];
        for (int j = 0; j < n; j++)
            y[j] = y[j] + A[i][j] * product[i];
    }
}
