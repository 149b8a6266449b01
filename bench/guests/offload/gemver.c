// A changed by two outer products, then multiplied by vectors from both sides.
#include "program.h"

double A[4000][4000];
double u1[4000], v1[4000], u2[4000], v2[4000], w[4000], x[4000], y[4000], z[4000];

void EXPORT(init)(int n)
{
    for (int i = 0; i < n; i++) {
        u1[i] = sample(i, 1);
        v1[i] = sample(i, 2);
        u2[i] = sample(i, 3);
        v2[i] = sample(i, 4);
        y[i] = sample(i, 5);
        z[i] = sample(i, 6);
        w[i] = x[i] = 0;
        for (int j = 0; j < n; j++)
            A[i][j] = sample(i * n + j, 7);
    }
}

void EXPORT(run)(int n)
{
    const double alpha = 1.5, beta = 1.2;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            A[i][j] = A[i][j] + u1[i] * v1[j] + u2[i] * v2[j];
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            x[i] = x[i] + beta * A[j][i] * y[j];
    for (int i = 0; i < n; i++)
        x[i] = x[i] + z[i];
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            w[i] = w[i] + alpha * A[i][j] * x[j];
}
