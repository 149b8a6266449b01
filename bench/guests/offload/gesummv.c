// y = alpha A x + beta B x.
#include "program.h"

double A[2800][2800], B[2800][2800], x[2800], y[2800], product[2800];

void EXPORT(init)(int n)
{
    for (int i = 0; i < n; i++) {
        x[i] = sample(i, 1);
        for (int j = 0; j < n; j++) {
            A[i][j] = sample(i * n + j, 2);
            B[i][j] = sample(i * n + j, 3);
        }
    }
}

void EXPORT(run)(int n)
{
    const double alpha = 1.5, beta = 1.2;
    for (int i = 0; i < n; i++) {
        product[i] = 0;
        y[i] = 0;
        for (int j = 0; j < n; j++) {
            product[i] = A[i][j] * x[j] + product[i];
            y[i] = B[i][j] * x[j] + y[i];
        }
        y[i] = alpha * product[i] + beta * y[i];
    }
}
