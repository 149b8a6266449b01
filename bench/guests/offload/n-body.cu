#include "program.cuh"

#define BODIES 12000

extern "C" double px[BODIES], py[BODIES], pz[BODIES], vx[BODIES], vy[BODIES], vz[BODIES], mass[BODIES];

static const double dt = 0.01;

static __global__ void pull(int n, double *px, double *py, double *pz, double *vx, double *vy, double *vz, double *mass)
{
    int i = X;
    if (i < n) {
        double ax = 0, ay = 0, az = 0;
        for (int j = 0; j < n; j++) {
            double dx = px[j] - px[i], dy = py[j] - py[i], dz = pz[j] - pz[i];
            double square = dx * dx + dy * dy + dz * dz + 1e-3;
            double pull = mass[j] / (square * sqrt(square));
            ax += pull * dx;
            ay += pull * dy;
            az += pull * dz;
        }
        vx[i] += dt * ax;
        vy[i] += dt * ay;
        vz[i] += dt * az;
    }
}

static __global__ void move(int n, double *px, double *py, double *pz, double *vx, double *vy, double *vz)
{
    int i = X;
    if (i < n) {
        px[i] += dt * vx[i];
        py[i] += dt * vy[i];
        pz[i] += dt * vz[i];
    }
}

KERNELS(int steps, int n)
{
    OnDevice x(px), y(py), z(pz), u(vx), v(vy), w(vz), m(mass);
    return timed([&] {
        for (int t = 0; t < steps; t++) {
            pull<<<line(n), LINE>>>(n, x, y, z, u, v, w, m);
            move<<<line(n), LINE>>>(n, x, y, z, u, v, w);
        }
    });
}
