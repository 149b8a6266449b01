#include "program.cuh"

extern "C" double ex[2000][2600], ey[2000][2600], hz[2000][2600], source[1000];

static __global__ void step_y(int t, int nx, int ny, double (*ey)[2600], double (*hz)[2600], double *source)
{
    int i = Y, j = X;
    if (i < nx && j < ny)
        ey[i][j] = i == 0 ? source[t] : ey[i][j] - 0.5 * (hz[i][j] - hz[i - 1][j]);
}

static __global__ void step_x(int nx, int ny, double (*ex)[2600], double (*hz)[2600])
{
    int i = Y, j = X + 1;
    if (i < nx && j < ny)
        ex[i][j] = ex[i][j] - 0.5 * (hz[i][j] - hz[i][j - 1]);
}

static __global__ void step_z(int nx, int ny, double (*ex)[2600], double (*ey)[2600], double (*hz)[2600])
{
    int i = Y, j = X;
    if (i < nx - 1 && j < ny - 1)
        hz[i][j] = hz[i][j] - 0.7 * (ex[i][j + 1] - ex[i][j] + ey[i + 1][j] - ey[i][j]);
}

KERNELS(int steps, int nx, int ny)
{
    OnDevice x(ex), y(ey), z(hz), s(source);
    return timed([&] {
        for (int t = 0; t < steps; t++) {
            step_y<<<tiles(ny, nx), TILE>>>(t, nx, ny, y, z, s);
            step_x<<<tiles(ny - 1, nx), TILE>>>(nx, ny, x, z);
            step_z<<<tiles(ny - 1, nx - 1), TILE>>>(nx, ny, x, y, z);
        }
    });
}
