// An image convolved with a filter of 9 by 9.
#include "program.h"

#define EDGE 9

float image[4320][7680], filter[EDGE][EDGE], result[4320][7680];

void EXPORT(init)(int w, int h)
{
    for (int i = 0; i < h; i++)
        for (int j = 0; j < w; j++)
            image[i][j] = (float)sample(i * w + j, 1);
    for (int a = 0; a < EDGE; a++)
        for (int b = 0; b < EDGE; b++)
            filter[a][b] = (float)sample(a * EDGE + b, 2);
}

void EXPORT(run)(int w, int h)
{
    for (int i = 0; i <= h - EDGE; i++)
        for (int j = 0; j <= w - EDGE; j++) {
            float sum = 0;
            for (int a = 0; a < EDGE; a++)
                for (int b = 0; b < EDGE; b++)
                    sum += filter[a][b] * image[i + a][j + b];
            result[i][j] = sum;
        }
}
