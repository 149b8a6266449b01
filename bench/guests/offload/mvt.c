// x1 += A y1 and x2 += A' y2.
#include "program.h"

double A[4000][4000], x1[4000], x2[4000], y1[4000], y2[4000];

void EXPORT(init)(int n)
{
    for (int i = 0; i < n; i++) {
        x1[i] = sample(i, 1);
        x2[i] = sample(i, 2);
        y1[i] = sample(i, 3);
        y2[i] = sample(i, 4);
        for (int j = 0; j < n; j++)
            A[i][j] = sample(i * n + j, 5);
    }
}

void EXPORT(run)(int n)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            x1[i] = x1[i] + A[i][j] * y1[j];
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            x2[i] = x2[i] + A[j][i] * y2[j];
}
