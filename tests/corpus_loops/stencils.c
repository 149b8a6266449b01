// Stencils, each over some steps of time.
// run: jacobi_1d(3, 20)
// run: jacobi_1d(0, 20)
// run: jacobi_2d(2, 9)
// run: jacobi_2d(2, 2)
// run: heat_3d(2, 7)
// run: fdtd_2d(2, 8, 9)
// run: seidel_2d(2, 8)
// run: adi(2, 8)
#include "loops.h"

double a[N], b[N];
double A[N][N], B[N][N], C[N][N], P[N][N], Q[N][N];
double S[N][N][N], T[N][N][N];
double source[N];

void EXPORT(init)(void) {
  for (int i = 0; i < N; i++) {
    a[i] = sample(i, 1), b[i] = sample(i, 2), source[i] = i;
    for (int j = 0; j < N; j++) {
      A[i][j] = sample(i * N + j, 3), B[i][j] = sample(i * N + j, 4), C[i][j] = sample(i * N + j, 5);
      for (int k = 0; k < N; k++) S[i][j][k] = T[i][j][k] = sample((i * N + j) * N + k, 6);
    }
  }
}

void EXPORT(jacobi_1d)(int steps, int n) {
  for (int t = 0; t < steps; t++) {
    for (int i = 1; i < n - 1; i++) b[i] = 0.33333 * (a[i - 1] + a[i] + a[i + 1]);
    for (int i = 1; i < n - 1; i++) a[i] = 0.33333 * (b[i - 1] + b[i] + b[i + 1]);
  }
}

void EXPORT(jacobi_2d)(int steps, int n) {
  for (int t = 0; t < steps; t++) {
    for (int i = 1; i < n - 1; i++)
      for (int j = 1; j < n - 1; j++)
        B[i][j] = 0.2 * (A[i][j] + A[i][j - 1] + A[i][1 + j] + A[1 + i][j] + A[i - 1][j]);
    for (int i = 1; i < n - 1; i++)
      for (int j = 1; j < n - 1; j++)
        A[i][j] = 0.2 * (B[i][j] + B[i][j - 1] + B[i][1 + j] + B[1 + i][j] + B[i - 1][j]);
  }
}

void EXPORT(heat_3d)(int steps, int n) {
  for (int t = 1; t <= steps; t++) {
    for (int i = 1; i < n - 1; i++)
      for (int j = 1; j < n - 1; j++)
        for (int k = 1; k < n - 1; k++)
          T[i][j][k] = 0.125 * (S[i + 1][j][k] - 2.0 * S[i][j][k] + S[i - 1][j][k]) +
                       0.125 * (S[i][j + 1][k] - 2.0 * S[i][j][k] + S[i][j - 1][k]) +
                       0.125 * (S[i][j][k + 1] - 2.0 * S[i][j][k] + S[i][j][k - 1]) + S[i][j][k];
    for (int i = 1; i < n - 1; i++)
      for (int j = 1; j < n - 1; j++)
        for (int k = 1; k < n - 1; k++)
          S[i][j][k] = 0.125 * (T[i + 1][j][k] - 2.0 * T[i][j][k] + T[i - 1][j][k]) +
                       0.125 * (T[i][j + 1][k] - 2.0 * T[i][j][k] + T[i][j - 1][k]) +
                       0.125 * (T[i][j][k + 1] - 2.0 * T[i][j][k] + T[i][j][k - 1]) + T[i][j][k];
  }
}

void EXPORT(fdtd_2d)(int steps, int nx, int ny) {
  for (int t = 0; t < steps; t++) {
    for (int j = 0; j < ny; j++) A[0][j] = source[t];
    for (int i = 1; i < nx; i++)
      for (int j = 0; j < ny; j++) A[i][j] = A[i][j] - 0.5 * (C[i][j] - C[i - 1][j]);
    for (int i = 0; i < nx; i++)
      for (int j = 1; j < ny; j++) B[i][j] = B[i][j] - 0.5 * (C[i][j] - C[i][j - 1]);
    for (int i = 0; i < nx - 1; i++)
      for (int j = 0; j < ny - 1; j++)
        C[i][j] = C[i][j] - 0.7 * (B[i][j + 1] - B[i][j] + A[i + 1][j] - A[i][j]);
  }
}

void EXPORT(seidel_2d)(int steps, int n) {
  for (int t = 0; t < steps; t++)
    for (int i = 1; i < n - 1; i++)
      for (int j = 1; j < n - 1; j++)
        A[i][j] = (A[i - 1][j - 1] + A[i - 1][j] + A[i - 1][j + 1] + A[i][j - 1] + A[i][j] + A[i][j + 1] +
                   A[i + 1][j - 1] + A[i + 1][j] + A[i + 1][j + 1]) / 9.0;
}

void EXPORT(adi)(int steps, int n) {
  double dx = 1.0 / (double)n, dt = 1.0 / (double)steps;
  double mul1 = 2.0 * dt / (dx * dx), mul2 = dt / (dx * dx);
  double a = -mul1 / 2.0, b = 1.0 + mul1, c = a, d = -mul2 / 2.0, e = 1.0 + mul2, f = d;
  for (int t = 1; t <= steps; t++) {
    for (int i = 1; i < n - 1; i++) {
      B[0][i] = 1.0, P[i][0] = 0.0, Q[i][0] = B[0][i];
      for (int j = 1; j < n - 1; j++) {
        P[i][j] = -c / (a * P[i][j - 1] + b);
        Q[i][j] = (-d * A[j][i - 1] + (1.0 + 2.0 * d) * A[j][i] - f * A[j][i + 1] - a * Q[i][j - 1]) /
                  (a * P[i][j - 1] + b);
      }
      B[n - 1][i] = 1.0;
      for (int j = n - 2; j >= 1; j--) B[j][i] = P[i][j] * B[j + 1][i] + Q[i][j];
    }
    for (int i = 1; i < n - 1; i++) {
      A[i][0] = 1.0, P[i][0] = 0.0, Q[i][0] = A[i][0];
      for (int j = 1; j < n - 1; j++) {
        P[i][j] = -f / (d * P[i][j - 1] + e);
        Q[i][j] = (-a * B[i - 1][j] + (1.0 + 2.0 * a) * B[i][j] - c * B[i + 1][j] - d * Q[i][j - 1]) /
                  (d * P[i][j - 1] + e);
      }
      A[i][n - 1] = 1.0;
      for (int j = n - 2; j >= 1; j--) A[i][j] = P[i][j] * A[i][j + 1] + Q[i][j];
    }
  }
}
