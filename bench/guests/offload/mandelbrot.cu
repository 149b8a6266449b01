#include "program.cuh"

extern "C" int steps[2160][3840];

static __global__ void escape(int w, int h, int most, int (*steps)[3840])
{
    int i = Y, j = X;
    if (i < h && j < w) {
        double cr = 3.0 * j / w - 2.0, ci = 2.0 * i / h - 1.0, zr = 0, zi = 0;
        int k = 0;
        while (k < most && zr * zr + zi * zi < 4.0) {
            double next = zr * zr - zi * zi + cr;
            zi = 2 * zr * zi + ci;
            zr = next;
            k++;
        }
        steps[i][j] = k;
    }
}

KERNELS(int w, int h, int most)
{
    OnDevice s(steps);
    return timed([&] { escape<<<tiles(w, h), TILE>>>(w, h, most, s); });
}
