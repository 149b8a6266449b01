#include "program.cuh"

#define EDGE 9

extern "C" float image[4320][7680], filter[EDGE][EDGE], result[4320][7680];

static __global__ void convolve(int w, int h, float (*image)[7680], float (*filter)[EDGE], float (*result)[7680])
{
    int i = Y, j = X;
    if (i <= h - EDGE && j <= w - EDGE) {
        float sum = 0;
        for (int a = 0; a < EDGE; a++)
            for (int b = 0; b < EDGE; b++)
                sum += filter[a][b] * image[i + a][j + b];
        result[i][j] = sum;
    }
}

KERNELS(int w, int h)
{
    OnDevice i(image), f(filter), r(result);
    return timed([&] { convolve<<<tiles(w - EDGE + 1, h - EDGE + 1), TILE>>>(w, h, i, f, r); });
}
