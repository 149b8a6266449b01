// Factorisations and solvers of linear systems.
// run: lu(9)
// run: ludcmp(9)
// run: cholesky(9)
// run: trisolv(11)
// run: durbin(9)
// run: gramschmidt(9, 8)
#include "loops.h"

double A[N][N], Q[N][N], R[N][N];
double b[N], x[N], y[N], z[N];

void EXPORT(init)(void) {
  for (int i = 0; i < N; i++) {
    b[i] = sample(i, 1), x[i] = sample(i, 2), y[i] = sample(i, 3);
    for (int j = 0; j < N; j++) A[i][j] = sample(i < j ? i * N + j : j * N + i, 4) + (i == j ? N : 0);
  }
}

void EXPORT(lu)(int n) {
  for (int i = 0; i < n; i++) {
    for (int j = 0; j < i; j++) {
      for (int k = 0; k < j; k++) A[i][j] -= A[i][k] * A[k][j];
      A[i][j] /= A[j][j];
    }
    for (int j = i; j < n; j++)
      for (int k = 0; k < i; k++) A[i][j] -= A[i][k] * A[k][j];
  }
}

void EXPORT(ludcmp)(int n) {
  for (int i = 0; i < n; i++) {
    for (int j = 0; j < i; j++) {
      double w = A[i][j];
      for (int k = 0; k < j; k++) w -= A[i][k] * A[k][j];
      A[i][j] = w / A[j][j];
    }
    for (int j = i; j < n; j++) {
      double w = A[i][j];
      for (int k = 0; k < i; k++) w -= A[i][k] * A[k][j];
      A[i][j] = w;
    }
  }
  for (int i = 0; i < n; i++) {
    double w = b[i];
    for (int j = 0; j < i; j++) w -= A[i][j] * y[j];
    y[i] = w;
  }
  for (int i = n - 1; i >= 0; i--) {
    double w = y[i];
    for (int j = i + 1; j < n; j++) w -= A[i][j] * x[j];
    x[i] = w / A[i][i];
  }
}

void EXPORT(cholesky)(int n) {
  for (int i = 0; i < n; i++) {
    for (int j = 0; j < i; j++) {
      for (int k = 0; k < j; k++) A[i][j] -= A[i][k] * A[j][k];
      A[i][j] /= A[j][j];
    }
    for (int k = 0; k < i; k++) A[i][i] -= A[i][k] * A[i][k];
    A[i][i] = __builtin_sqrt(A[i][i]);
  }
}

void EXPORT(trisolv)(int n) {
  for (int i = 0; i < n; i++) {
    x[i] = b[i];
    for (int j = 0; j < i; j++) x[i] -= A[i][j] * x[j];
    x[i] = x[i] / A[i][i];
  }
}

void EXPORT(durbin)(int n) {
  y[0] = -b[0];
  double beta = 1.0, alpha = -b[0];
  for (int k = 1; k < n; k++) {
    beta = (1 - alpha * alpha) * beta;
    double sum = 0.0;
    for (int i = 0; i < k; i++) sum += b[k - i - 1] * y[i];
    alpha = -(b[k] + sum) / beta;
    for (int i = 0; i < k; i++) z[i] = y[i] + alpha * y[k - i - 1];
    for (int i = 0; i < k; i++) y[i] = z[i];
    y[k] = alpha;
  }
}

void EXPORT(gramschmidt)(int m, int n) {
  for (int k = 0; k < n; k++) {
    double norm = 0.0;
    for (int i = 0; i < m; i++) norm += A[i][k] * A[i][k];
    R[k][k] = __builtin_sqrt(norm);
    for (int i = 0; i < m; i++) Q[i][k] = A[i][k] / R[k][k];
    for (int j = k + 1; j < n; j++) {
      R[k][j] = 0.0;
      for (int i = 0; i < m; i++) R[k][j] += Q[i][k] * A[i][j];
      for (int i = 0; i < m; i++) A[i][j] = A[i][j] - Q[i][k] * R[k][j];
    }
  }
}
