// Updates in their own place, of which each outer iteration reads one row or column, or one element, that it may write.
// run: shortest_paths(9)
// run: shortest_paths(8)
// run: shortest_paths(1)
// run: shortest_paths(0)
// run: negative_cycles(9)
// run: reachable(10)
// run: eliminate(9)
// run: pivot_row(8, 11)
// run: pivot_column(9)
// run: one_element(15)
// run: middle(14)
// run: mirrored(9)
// run: lower_and_upper(9)
// run: lower_and_upper(24)
// run: carried_apart(9)
// run: stored_between(9)
// run: stored_by_another(9)
// run: float_counts(13)
// run: float_counts(0)
#include "loops.h"
int path[N][N], counts[N];
u8 edges[N][N];
double A[N][N], a[N], b[N];
float f[N];

void EXPORT(init)(void) {
  for (int i = 0; i < N; i++) {
    a[i] = sample(i, 5);
    b[i] = f[i] = counts[i] = i;
    for (int j = 0; j < N; j++) {
      path[i][j] = (i + j) % 7 == 0 || (i + j) % 11 == 0 ? 999 : i * j % 7 + 1;
      edges[i][j] = (i * 7 + j * 5) % 4 == 0;
      A[i][j] = sample(i * N + j, 6) + (i == j) * N;
    }
  }
}

void EXPORT(shortest_paths)(int n) {
  for (int k = 0; k < n; k++)
    for (int i = 0; i < n; i++)
      for (int j = 0; j < n; j++)
        path[i][j] = path[i][j] < path[i][k] + path[k][j] ? path[i][j] : path[i][k] + path[k][j];
}

void EXPORT(negative_cycles)(int n) {
  for (int k = 0; k < n; k++) path[k][k] = 3 * k - 20;
  for (int k = 0; k < n; k++)
    for (int i = 0; i < n; i++)
      for (int j = 0; j < n; j++)
        if (path[i][k] + path[k][j] < path[i][j]) path[i][j] = path[i][k] + path[k][j];
}

void EXPORT(reachable)(int n) {
  for (int k = 0; k < n; k++)
    for (int i = 0; i < n; i++)
      for (int j = 0; j < n; j++) edges[i][j] |= edges[i][k] & edges[k][j];
}

void EXPORT(eliminate)(int n) {
  for (int k = 0; k < n; k++)
    for (int i = 0; i < n; i++) {
      double factor = A[i][k] / A[k][k];
      for (int j = 0; j < n; j++) A[i][j] -= factor * A[k][j];
    }
}

void EXPORT(pivot_row)(int n, int m) {
  for (int k = 0; k < n; k++)
    for (int i = 0; i < n; i++)
      for (int j = 0; j < m; j++) A[i][j] = A[i][j] * 0.5 + A[k][j];
}

void EXPORT(pivot_column)(int n) {
  for (int k = 0; k < n; k++)
    for (int i = 0; i < n; i++)
      for (int j = 0; j < n; j++) A[i][j] = A[i][j] * 0.5 + A[i][k];
}

void EXPORT(one_element)(int n) {
  for (int k = 0; k < n; k++)
    for (int i = 0; i < n; i++) a[i] = a[i] * 0.25 + a[k];
}

void EXPORT(middle)(int n) {
  for (int k = 0; k < n; k++)
    for (int i = 0; i < n; i++) counts[i] = counts[i] * 3 + counts[k / 2];
}

void EXPORT(mirrored)(int n) {
  for (int k = 0; k < n; k++)
    for (int i = 0; i < n; i++) a[i] = a[i] * 0.25 + a[n - 1 - k];
}

void EXPORT(lower_and_upper)(int n) {
  for (int i = 0; i < n; i++) {
    for (int j = 0; j < i; j++) {
      for (int k = 0; k < j; k++) A[i][j] -= A[i][k] * A[k][j];
      A[i][j] /= A[j][j];
    }
    for (int j = i; j < n; j++)
      for (int k = 0; k < i; k++) A[i][j] -= A[i][k] * A[k][j];
  }
}

void EXPORT(carried_apart)(int n) {
  for (int i = 0; i < n; i++)
    for (int j = 0; j < i; j++) {
      double x = A[i][j];
      for (int k = 0; k < j; k++) {
        x -= A[i][k] * A[k][j];
        A[i][j] = x * 0.5;
      }
      A[j][i] = x;
    }
}

void EXPORT(stored_between)(int n) {
  for (int i = 0; i < n; i++)
    for (int j = 0; j < i; j++) {
      double x = A[i][j];
      for (int k = 0; k < j; k++) {
        x -= A[i][k] * A[k][j];
        A[i][j] = x;
        if (k & 1) A[i][j] = k;
      }
      A[j][i] = x;
    }
}

void EXPORT(stored_by_another)(int n) {
  for (int i = 0; i < n; i++)
    for (int j = 0; j < i; j++) {
      double x = A[i][j];
      for (int k = 0; k < j; k++) {
        A[i][n - 1 - k] *= 0.5;
        x -= A[i][k] * A[k][j];
        A[i][j] = x;
      }
      A[j][i] = x;
    }
}

void EXPORT(float_counts)(int n) {
  double x = 0, y = 3, z = -0.0, w = 0.5;
  float v = 7;
  for (int i = 0; i < n; i++) {
    a[i] = x * y;
    f[i] = v / 2;
    b[i] = 1 / (z + w);
    x += 1, y -= 3, z += 2, w += 1, v += 5;
  }
  b[N - 1] = x + y + v;
}
