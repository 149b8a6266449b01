#include "program.cuh"

#define POINTS 500000
#define CLUSTERS 64
#define DIMENSIONS 16

extern "C" double points[POINTS][DIMENSIONS], centers[CLUSTERS][DIMENSIONS], sums[CLUSTERS][DIMENSIONS];
extern "C" int nearest[POINTS], members[CLUSTERS];

static __global__ void assign(
    int n, int clusters, int dimensions, double (*points)[DIMENSIONS], double (*centers)[DIMENSIONS], int *nearest)
{
    int i = X;
    if (i < n) {
        double best = 1e300;
        int chosen = 0;
        for (int c = 0; c < clusters; c++) {
            double distance = 0;
            for (int j = 0; j < dimensions; j++)
                distance += (points[i][j] - centers[c][j]) * (points[i][j] - centers[c][j]);
            if (distance < best) {
                best = distance;
                chosen = c;
            }
        }
        nearest[i] = chosen;
    }
}

// A thread for each coordinate of a center, which goes through all points.
static __global__ void move(
    int n, int clusters, int dimensions, double (*points)[DIMENSIONS], double (*centers)[DIMENSIONS],
    double (*sums)[DIMENSIONS], int *nearest, int *members)
{
    int c = blockIdx.x, j = threadIdx.x;
    if (c < clusters && j < dimensions) {
        double sum = 0;
        int count = 0;
        for (int i = 0; i < n; i++)
            if (nearest[i] == c) {
                count++;
                sum += points[i][j];
            }
        sums[c][j] = sum;
        if (j == 0)
            members[c] = count;
        if (count > 0)
            centers[c][j] = sum / count;
    }
}

KERNELS(int steps, int n, int clusters, int dimensions)
{
    OnDevice p(points), c(centers), s(sums), k(nearest), m(members);
    return timed([&] {
        for (int t = 0; t < steps; t++) {
            assign<<<line(n), LINE>>>(n, clusters, dimensions, p, c, k);
            move<<<clusters, dimensions>>>(n, clusters, dimensions, p, c, s, k, m);
        }
    });
}
