// An electromagnetic field in two dimensions.
#include "program.h"

double ex[2000][2600], ey[2000][2600], hz[2000][2600], source[1000];

void EXPORT(init)(int steps, int nx, int ny)
{
    for (int t = 0; t < steps; t++)
        source[t] = t;
    for (int i = 0; i < nx; i++)
        for (int j = 0; j < ny; j++) {
            ex[i][j] = (double)i * (j + 1) / nx;
            ey[i][j] = (double)i * (j + 2) / ny;
            hz[i][j] = (double)i * (j + 3) / nx;
        }
}

void EXPORT(run)(int steps, int nx, int ny)
{
    for (int t = 0; t < steps; t++) {
        for (int j = 0; j < ny; j++)
            ey[0][j] = source[t];
        for (int i = 1; i < nx; i++)
            for (int j = 0; j < ny; j++)
                ey[i][j] = ey[i][j] - 0.5 * (hz[i][j] - hz[i - 1][j]);
        for (int i = 0; i < nx; i++)
            for (int j = 1; j < ny; j++)
                ex[i][j] = ex[i][j] - 0.5 * (hz[i][j] - hz[i][j - 1]);
        for (int i = 0; i < nx - 1; i++)
            for (int j = 0; j < ny - 1; j++)
                hz[i][j] = hz[i][j] - 0.7 * (ex[i][j + 1] - ex[i][j] + ey[i + 1][j] - ey[i][j]);
    }
}
