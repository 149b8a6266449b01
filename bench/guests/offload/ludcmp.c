// A x = b solved by factors of A, in its place.
#include "program.h"

double A[4000][4000], b[4000], x[4000], y[4000];

void EXPORT(init)(int n)
{
    for (int i = 0; i < n; i++) {
        b[i] = sample(i, 1);
        for (int j = 0; j < n; j++)
            A[i][j] = sample(i * n + j, 2);
        A[i][i] += n;
    }
}

void EXPORT(run)(int n)
{
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < i; j++) {
            double sum = A[i][j];
            for (int k = 0; k < j; k++)
                sum -= A[i][k] * A[k][j];
            A[i][j] = sum / A[j][j];
        }
        for (int j = i; j < n; j++) {
            double sum = A[i][j];
            for (int k = 0; k < i; k++)
                sum -= A[i][k] * A[k][j];
            A[i][j] = sum;
        }
    }
    for (int i = 0; i < n; i++) {
        double sum = b[i];
        for (int j = 0; j < i; j++)
            sum -= A[i][j] * y[j];
        y[i] = sum;
    }
    for (int i = n - 1; i >= 0; i--) {
        double sum = y[i];
        for (int j = i + 1; j < n; j++)
            sum -= A[i][j] * x[j];
        x[i] = sum / A[i][i];
    }
}
