#include "program.cuh"

extern "C" int path[5600][5600];

static __global__ void step(int k, int n, int (*path)[5600])
{
    int i = Y, j = X;
    if (i < n && j < n) {
        int through = path[i][k] + path[k][j];
        path[i][j] = path[i][j] < through ? path[i][j] : through;
    }
}

KERNELS(int n)
{
    OnDevice p(path);
    return timed([&] {
        for (int k = 0; k < n; k++)
            step<<<tiles(n, n), TILE>>>(k, n, p);
    });
}
