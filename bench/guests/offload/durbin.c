// A Toeplitz system, solved by Durbin's recursion.
#include "program.h"

double r[4000], y[4000], z[4000];

void EXPORT(init)(int n)
{
    for (int i = 0; i < n; i++)
        r[i] = sample(i, 1) / (2 * n);
}

void EXPORT(run)(int n)
{
    double alpha = -r[0], beta = 1;
    y[0] = -r[0];
    for (int k = 1; k < n; k++) {
        beta = (1 - alpha * alpha) * beta;
        double sum = 0;
        for (int i = 0; i < k; i++)
            sum += r[k - i - 1] * y[i];
        alpha = -(r[k] + sum) / beta;
        for (int i = 0; i < k; i++)
            z[i] = y[i] + alpha * y[k - i - 1];
        for (int i = 0; i < k; i++)
            y[i] = z[i];
        y[k] = alpha;
    }
}
