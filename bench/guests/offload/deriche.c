// Deriche's recursive filter of an image, along rows and then along columns.
#include "program.h"

float in[7680][4320], out[7680][4320], y1[7680][4320], y2[7680][4320];

void EXPORT(init)(int w, int h)
{
    for (int i = 0; i < w; i++)
        for (int j = 0; j < h; j++)
            in[i][j] = (float)((313 * i + 991 * j) % 65536) / 65535.0f;
}

void EXPORT(run)(int w, int h)
{
    // For alpha = 0.25: exp(-alpha), exp(-2 alpha) and 2**-alpha.
    const float alpha = 0.25f, e1 = 0.77880078f, e2 = 0.60653066f, b1 = 0.84089642f, b2 = -e2;
    const float k = (1.0f - e1) * (1.0f - e1) / (1.0f + 2.0f * alpha * e1 - e2);
    const float a1 = k, a2 = k * e1 * (alpha - 1.0f), a3 = k * e1 * (alpha + 1.0f), a4 = -k * e2;
    for (int i = 0; i < w; i++) {
        float ym1 = 0, ym2 = 0, xm1 = 0;
        for (int j = 0; j < h; j++) {
            y1[i][j] = a1 * in[i][j] + a2 * xm1 + b1 * ym1 + b2 * ym2;
            xm1 = in[i][j];
            ym2 = ym1;
            ym1 = y1[i][j];
        }
    }
    for (int i = 0; i < w; i++) {
        float yp1 = 0, yp2 = 0, xp1 = 0, xp2 = 0;
        for (int j = h - 1; j >= 0; j--) {
            y2[i][j] = a3 * xp1 + a4 * xp2 + b1 * yp1 + b2 * yp2;
            xp2 = xp1;
            xp1 = in[i][j];
            yp2 = yp1;
            yp1 = y2[i][j];
        }
    }
    for (int i = 0; i < w; i++)
        for (int j = 0; j < h; j++)
            out[i][j] = y1[i][j] + y2[i][j];
    for (int j = 0; j < h; j++) {
        float tm1 = 0, ym1 = 0, ym2 = 0;
        for (int i = 0; i < w; i++) {
            y1[i][j] = a1 * out[i][j] + a2 * tm1 + b1 * ym1 + b2 * ym2;
            tm1 = out[i][j];
            ym2 = ym1;
            ym1 = y1[i][j];
        }
    }
    for (int j = 0; j < h; j++) {
        float tp1 = 0, tp2 = 0, yp1 = 0, yp2 = 0;
        for (int i = w - 1; i >= 0; i--) {
            y2[i][j] = a3 * tp1 + a4 * tp2 + b1 * yp1 + b2 * yp2;
            tp2 = tp1;
            tp1 = out[i][j];
            yp2 = yp1;
            yp1 = y2[i][j];
        }
    }
    for (int i = 0; i < w; i++)
        for (int j = 0; j < h; j++)
            out[i][j] = y1[i][j] + y2[i][j];
}
