// Bodies that attract each other.
#include "program.h"

#define BODIES 12000

double px[BODIES], py[BODIES], pz[BODIES], vx[BODIES], vy[BODIES], vz[BODIES], mass[BODIES];

void EXPORT(init)(int steps, int n)
{
    (void)steps;
    for (int i = 0; i < n; i++) {
        px[i] = sample(i, 1);
        py[i] = sample(i, 2);
        pz[i] = sample(i, 3);
        vx[i] = sample(i, 4);
        vy[i] = sample(i, 5);
        vz[i] = sample(i, 6);
        mass[i] = (1 + sample(i, 7)) / n;
    }
}

void EXPORT(run)(int steps, int n)
{
    const double dt = 0.01;
    for (int t = 0; t < steps; t++) {
        for (int i = 0; i < n; i++) {
            double ax = 0, ay = 0, az = 0;
            for (int j = 0; j < n; j++) {
                double dx = px[j] - px[i], dy = py[j] - py[i], dz = pz[j] - pz[i];
                double square = dx * dx + dy * dy + dz * dz + 1e-3;
                double pull = mass[j] / (square * __builtin_sqrt(square));
                ax += pull * dx;
                ay += pull * dy;
                az += pull * dz;
            }
            vx[i] += dt * ax;
            vy[i] += dt * ay;
            vz[i] += dt * az;
        }
        for (int i = 0; i < n; i++) {
            px[i] += dt * vx[i];
            py[i] += dt * vy[i];
            pz[i] += dt * vz[i];
        }
    }
}
