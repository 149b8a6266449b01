// s = A' r and q = A p.
#include "program.h"

double A[2200][1900], s[1900], q[2200], p[1900], r[2200];

void EXPORT(init)(int m, int n)
{
    for (int j = 0; j < m; j++)
        p[j] = sample(j, 1);
    for (int i = 0; i < n; i++) {
        r[i] = sample(i, 2);
        for (int j = 0; j < m; j++)
            A[i][j] = sample(i * m + j, 3);
    }
}

void EXPORT(run)(int m, int n)
{
    for (int j = 0; j < m; j++)
        s[j] = 0;
    for (int i = 0; i < n; i++) {
        q[i] = 0;
        for (int j = 0; j < m; j++) {
            s[j] = s[j] + r[i] * A[i][j];
            q[i] = q[i] + A[i][j] * p[j];
        }
    }
}
