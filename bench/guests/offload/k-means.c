// Clusters of points by Lloyd's method.
#include "program.h"

#define POINTS 500000
#define CLUSTERS 64
#define DIMENSIONS 16

double points[POINTS][DIMENSIONS], centers[CLUSTERS][DIMENSIONS], sums[CLUSTERS][DIMENSIONS];
int nearest[POINTS], members[CLUSTERS];

void EXPORT(init)(int steps, int n, int clusters, int dimensions)
{
    (void)steps;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < dimensions; j++)
            points[i][j] = sample(i * dimensions + j, 1);
    for (int c = 0; c < clusters; c++)
        for (int j = 0; j < dimensions; j++)
            centers[c][j] = points[c][j];
}

void EXPORT(run)(int steps, int n, int clusters, int dimensions)
{
    for (int t = 0; t < steps; t++) {
        for (int i = 0; i < n; i++) {
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
        for (int c = 0; c < clusters; c++) {
            members[c] = 0;
            for (int j = 0; j < dimensions; j++)
                sums[c][j] = 0;
        }
        for (int i = 0; i < n; i++) {
            members[nearest[i]]++;
            for (int j = 0; j < dimensions; j++)
                sums[nearest[i]][j] += points[i][j];
        }
        for (int c = 0; c < clusters; c++)
            if (members[c] > 0)
                for (int j = 0; j < dimensions; j++)
                    centers[c][j] = sums[c][j] / members[c];
    }
}
