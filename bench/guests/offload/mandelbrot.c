// The steps after which points leave the Mandelbrot set's circle.
#include "program.h"

int steps[2160][3840];

void EXPORT(init)(int w, int h, int most)
{
    (void)most;
    for (int i = 0; i < h; i++)
        for (int j = 0; j < w; j++)
            steps[i][j] = 0;
}

void EXPORT(run)(int w, int h, int most)
{
    for (int i = 0; i < h; i++)
        for (int j = 0; j < w; j++) {
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
