// Dense linear algebra: products of matrices and vectors.
// run: gemm(9, 10, 11, 1.5, 1.2)
// run: gemm(8, 8, 0, 1.5, 0.0)
// run: two_products(7, 8, 9, 10, 1.5, 1.2)
// run: three_products(7, 8, 6, 9, 5)
// run: syrk(10, 9, 1.5, 1.2)
// run: syr2k(10, 9, 1.5, 1.2)
// run: symm(9, 10, 1.5, 1.2)
// run: trmm(9, 10, 1.5)
// run: gemver(11, 1.5, 1.2)
// run: gesummv(11, 1.5, 1.2)
// run: atax(9, 11)
// run: bicg(9, 11)
// run: mvt(11)
// run: doitgen(5, 6, 7)
#include "loops.h"

double A[N][N], B[N][N], C[N][N], D[N][N], E[N][N], F[N][N], G[N][N];
double x[N], y[N], z[N], w[N], u1[N], u2[N], v1[N], v2[N];
double T[N][N][N];

void EXPORT(init)(void) {
  for (int i = 0; i < N; i++) {
    x[i] = sample(i, 1), y[i] = sample(i, 2), z[i] = sample(i, 3), w[i] = sample(i, 4);
    u1[i] = sample(i, 5), u2[i] = sample(i, 6), v1[i] = sample(i, 7), v2[i] = sample(i, 8);
    for (int j = 0; j < N; j++) {
      A[i][j] = sample(i * N + j, 9), B[i][j] = sample(i * N + j, 10), C[i][j] = sample(i * N + j, 11);
      D[i][j] = sample(i * N + j, 12), E[i][j] = sample(i * N + j, 13), F[i][j] = sample(i * N + j, 14);
      G[i][j] = sample(i * N + j, 15);
      for (int k = 0; k < N; k++) T[i][j][k] = sample((i * N + j) * N + k, 16);
    }
  }
}

void EXPORT(gemm)(int rows, int columns, int depth, double alpha, double beta) {
  for (int i = 0; i < rows; i++) {
    for (int j = 0; j < columns; j++) C[i][j] *= beta;
    for (int k = 0; k < depth; k++)
      for (int j = 0; j < columns; j++) C[i][j] += alpha * A[i][k] * B[k][j];
  }
}

void EXPORT(two_products)(int ni, int nj, int nk, int nl, double alpha, double beta) {
  for (int i = 0; i < ni; i++)
    for (int j = 0; j < nj; j++) {
      E[i][j] = 0.0;
      for (int k = 0; k < nk; k++) E[i][j] += alpha * A[i][k] * B[k][j];
    }
  for (int i = 0; i < ni; i++)
    for (int j = 0; j < nl; j++) {
      D[i][j] *= beta;
      for (int k = 0; k < nj; k++) D[i][j] += E[i][k] * C[k][j];
    }
}

void EXPORT(three_products)(int ni, int nj, int nk, int nl, int nm) {
  for (int i = 0; i < ni; i++)
    for (int j = 0; j < nj; j++) {
      E[i][j] = 0.0;
      for (int k = 0; k < nk; k++) E[i][j] += A[i][k] * B[k][j];
    }
  for (int i = 0; i < nj; i++)
    for (int j = 0; j < nl; j++) {
      F[i][j] = 0.0;
      for (int k = 0; k < nm; k++) F[i][j] += C[i][k] * D[k][j];
    }
  for (int i = 0; i < ni; i++)
    for (int j = 0; j < nl; j++) {
      G[i][j] = 0.0;
      for (int k = 0; k < nj; k++) G[i][j] += E[i][k] * F[k][j];
    }
}

void EXPORT(syrk)(int n, int m, double alpha, double beta) {
  for (int i = 0; i < n; i++) {
    for (int j = 0; j <= i; j++) C[i][j] *= beta;
    for (int k = 0; k < m; k++)
      for (int j = 0; j <= i; j++) C[i][j] += alpha * A[i][k] * A[j][k];
  }
}

void EXPORT(syr2k)(int n, int m, double alpha, double beta) {
  for (int i = 0; i < n; i++) {
    for (int j = 0; j <= i; j++) C[i][j] *= beta;
    for (int k = 0; k < m; k++)
      for (int j = 0; j <= i; j++) C[i][j] += A[j][k] * alpha * B[i][k] + B[j][k] * alpha * A[i][k];
  }
}

void EXPORT(symm)(int m, int n, double alpha, double beta) {
  for (int i = 0; i < m; i++)
    for (int j = 0; j < n; j++) {
      double sum = 0;
      for (int k = 0; k < i; k++) {
        C[k][j] += alpha * B[i][j] * A[i][k];
        sum += B[k][j] * A[i][k];
      }
      C[i][j] = beta * C[i][j] + alpha * B[i][j] * A[i][i] + alpha * sum;
    }
}

void EXPORT(trmm)(int m, int n, double alpha) {
  for (int i = 0; i < m; i++)
    for (int j = 0; j < n; j++) {
      for (int k = i + 1; k < m; k++) B[i][j] += A[k][i] * B[k][j];
      B[i][j] = alpha * B[i][j];
    }
}

void EXPORT(gemver)(int n, double alpha, double beta) {
  for (int i = 0; i < n; i++)
    for (int j = 0; j < n; j++) A[i][j] = A[i][j] + u1[i] * v1[j] + u2[i] * v2[j];
  for (int i = 0; i < n; i++)
    for (int j = 0; j < n; j++) x[i] = x[i] + beta * A[j][i] * y[j];
  for (int i = 0; i < n; i++) x[i] = x[i] + z[i];
  for (int i = 0; i < n; i++)
    for (int j = 0; j < n; j++) w[i] = w[i] + alpha * A[i][j] * x[j];
}

void EXPORT(gesummv)(int n, double alpha, double beta) {
  for (int i = 0; i < n; i++) {
    z[i] = 0.0, y[i] = 0.0;
    for (int j = 0; j < n; j++) {
      z[i] = A[i][j] * x[j] + z[i];
      y[i] = B[i][j] * x[j] + y[i];
    }
    y[i] = alpha * z[i] + beta * y[i];
  }
}

void EXPORT(atax)(int m, int n) {
  for (int i = 0; i < n; i++) y[i] = 0;
  for (int i = 0; i < m; i++) {
    z[i] = 0.0;
    for (int j = 0; j < n; j++) z[i] = z[i] + A[i][j] * x[j];
    for (int j = 0; j < n; j++) y[j] = y[j] + A[i][j] * z[i];
  }
}

void EXPORT(bicg)(int m, int n) {
  for (int i = 0; i < m; i++) x[i] = 0;
  for (int i = 0; i < n; i++) {
    y[i] = 0.0;
    for (int j = 0; j < m; j++) {
      x[j] = x[j] + z[i] * A[i][j];
      y[i] = y[i] + A[i][j] * w[j];
    }
  }
}

void EXPORT(mvt)(int n) {
  for (int i = 0; i < n; i++)
    for (int j = 0; j < n; j++) x[i] = x[i] + A[i][j] * z[j];
  for (int i = 0; i < n; i++)
    for (int j = 0; j < n; j++) y[i] = y[i] + A[j][i] * w[j];
}

void EXPORT(doitgen)(int nr, int nq, int np) {
  for (int r = 0; r < nr; r++)
    for (int q = 0; q < nq; q++) {
      for (int p = 0; p < np; p++) {
        x[p] = 0.0;
        for (int s = 0; s < np; s++) x[p] += T[r][q][s] * A[s][p];
      }
      for (int p = 0; p < np; p++) T[r][q][p] = x[p];
    }
}
