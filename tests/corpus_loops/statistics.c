// Statistics, shortest paths, dynamic programming and a recursive filter.
// run: covariance(8, 9)
// run: correlation(8, 9)
// run: floyd_warshall(9)
// run: nussinov(11)
// run: deriche(8, 9, 0.25, 0.5)
#include "loops.h"

double A[N][N], C[N][N], Y[N][N], Z[N][N];
double mean[N], deviation[N];
float image[N][N], out[N][N], f1[N][N], f2[N][N];
int path[N][N], table[N][N];
i8 bases[N];

void EXPORT(init)(void) {
  for (int i = 0; i < N; i++) {
    bases[i] = (i8)((i * i + 1) % 4);
    for (int j = 0; j < N; j++) {
      A[i][j] = sample(i * N + j, 1);
      image[i][j] = (float)sample(i * N + j, 2);
      path[i][j] = (i * j) % 7 + 1 + ((i + j) % 13 == 0 ? 999 : 0);
    }
  }
}

void EXPORT(covariance)(int m, int n) {
  for (int j = 0; j < m; j++) {
    mean[j] = 0.0;
    for (int i = 0; i < n; i++) mean[j] += A[i][j];
    mean[j] /= n;
  }
  for (int i = 0; i < n; i++)
    for (int j = 0; j < m; j++) A[i][j] -= mean[j];
  for (int i = 0; i < m; i++)
    for (int j = i; j < m; j++) {
      C[i][j] = 0.0;
      for (int k = 0; k < n; k++) C[i][j] += A[k][i] * A[k][j];
      C[i][j] /= n - 1.0;
      C[j][i] = C[i][j];
    }
}

void EXPORT(correlation)(int m, int n) {
  for (int j = 0; j < m; j++) {
    mean[j] = 0.0;
    for (int i = 0; i < n; i++) mean[j] += A[i][j];
    mean[j] /= n;
  }
  for (int j = 0; j < m; j++) {
    deviation[j] = 0.0;
    for (int i = 0; i < n; i++) deviation[j] += (A[i][j] - mean[j]) * (A[i][j] - mean[j]);
    deviation[j] /= n;
    deviation[j] = __builtin_sqrt(deviation[j]);
    deviation[j] = deviation[j] <= 0.1 ? 1.0 : deviation[j];
  }
  for (int i = 0; i < n; i++)
    for (int j = 0; j < m; j++) {
      A[i][j] -= mean[j];
      A[i][j] /= __builtin_sqrt((double)n) * deviation[j];
    }
  for (int i = 0; i < m - 1; i++) {
    C[i][i] = 1.0;
    for (int j = i + 1; j < m; j++) {
      C[i][j] = 0.0;
      for (int k = 0; k < n; k++) C[i][j] += A[k][i] * A[k][j];
      C[j][i] = C[i][j];
    }
  }
  C[m - 1][m - 1] = 1.0;
}

void EXPORT(floyd_warshall)(int n) {
  for (int k = 0; k < n; k++)
    for (int i = 0; i < n; i++)
      for (int j = 0; j < n; j++)
        path[i][j] = path[i][j] < path[i][k] + path[k][j] ? path[i][j] : path[i][k] + path[k][j];
}

static inline int larger(int a, int b) { return a >= b ? a : b; }

void EXPORT(nussinov)(int n) {
  for (int i = n - 1; i >= 0; i--)
    for (int j = i + 1; j < n; j++) {
      if (j - 1 >= 0) table[i][j] = larger(table[i][j], table[i][j - 1]);
      if (i + 1 < n) table[i][j] = larger(table[i][j], table[i + 1][j]);
      if (j - 1 >= 0 && i + 1 < n) {
        if (i < j - 1)
          table[i][j] = larger(table[i][j], table[i + 1][j - 1] + (bases[i] + bases[j] == 3 ? 1 : 0));
        else
          table[i][j] = larger(table[i][j], table[i + 1][j - 1]);
      }
      for (int k = i + 1; k < j; k++) table[i][j] = larger(table[i][j], table[i][k] + table[k + 1][j]);
    }
}

void EXPORT(deriche)(int w, int h, float a, float b) {
  for (int i = 0; i < w; i++) {
    float ym1 = 0, ym2 = 0, xm1 = 0;
    for (int j = 0; j < h; j++) {
      f1[i][j] = a * image[i][j] + b * xm1 + a * ym1 - b * ym2;
      xm1 = image[i][j], ym2 = ym1, ym1 = f1[i][j];
    }
  }
  for (int i = 0; i < w; i++) {
    float yp1 = 0, yp2 = 0, xp1 = 0, xp2 = 0;
    for (int j = h - 1; j >= 0; j--) {
      f2[i][j] = b * xp1 + a * xp2 + a * yp1 - b * yp2;
      xp2 = xp1, xp1 = image[i][j], yp2 = yp1, yp1 = f2[i][j];
    }
  }
  for (int i = 0; i < w; i++)
    for (int j = 0; j < h; j++) out[i][j] = a * (f1[i][j] + f2[i][j]);
  for (int j = 0; j < h; j++) {
    float tm1 = 0, ym1 = 0, ym2 = 0;
    for (int i = 0; i < w; i++) {
      f1[i][j] = a * out[i][j] + b * tm1 + a * ym1 - b * ym2;
      tm1 = out[i][j], ym2 = ym1, ym1 = f1[i][j];
    }
  }
  for (int j = 0; j < h; j++) {
    float tp1 = 0, tp2 = 0, yp1 = 0, yp2 = 0;
    for (int i = w - 1; i >= 0; i--) {
      f2[i][j] = b * tp1 + a * tp2 + a * yp1 - b * yp2;
      tp2 = tp1, tp1 = out[i][j], yp2 = yp1, yp1 = f2[i][j];
    }
  }
  for (int i = 0; i < w; i++)
    for (int j = 0; j < h; j++) out[i][j] = b * (f1[i][j] + f2[i][j]);
}
