// Loops with unusual counts, guards, exits, and things inside that are not loops.
// run: fill(0)
// run: fill(1)
// run: fill(2)
// run: fill(-5)
// run: fill(17)
// run: fill_to(5, 5)
// run: fill_to(7, 3)
// run: fill_to(-3, 4)
// run: count_down(13)
// run: count_down(0)
// run: count_down_unsigned(13)
// run: steps_of(3, 20)
// run: steps_of(1, 7)
// run: steps_of(7, 20)
// run: steps_of(-2, 20)
// run: not_equal(3, 15)
// run: triangle(9)
// run: triangle(1)
// run: triangle(0)
// run: upper_triangle(8)
// run: trapezoid(7, 3)
// run: tetrahedron(6)
// run: parity(9)
// run: parity(10)
// run: guarded(13)
// run: guarded_by_data(13)
// run: guarded_by_outer(8, 4)
// run: band(9, 2)
// run: blocks_of_four(15)
// run: tiled(10)
// run: zero_inner(6, 0)
// run: negative_inner(6, -3)
// run: until_zero(20)
// run: find(20, 7)
// run: find(20, 999)
// run: continued(14)
// run: switched(16)
// run: calls(9)
// run: calls_import(5)
// run: grows(3)
// run: last_value(12)
// run: exit_values(9, 7)
// run: sum_of_rows(7, 8)
// run: maximum(15)
// run: index_of_maximum(15)
// run: dot(17)
// run: chained(9)
// run: fibonacci(20)
// run: geometric(12)
// run: square_index(5)
// run: bound_from_memory(9)
// run: bound_changes(9)
// run: wide_counter(13)
// run: narrow_counter(13)
// run: two_counters(12)
// run: rotating(9)
// run: large_trip(10)
// run: perfect_three(4, 5, 6)
// run: imperfect_three(4, 5, 6)
// run: unswitched(9, 1)
// run: unswitched(9, 0)
// run: with_local_array(9)
// run: clear_and_copy(9)
#include "loops.h"

double a[8 * N], b[8 * N];
double A[N][N], B[N][N];
int words[8 * N], limits[N];

__attribute__((import_module("env"), import_name("touch"))) void touch(int number);

void EXPORT(init)(void) {
  for (int i = 0; i < 8 * N; i++) a[i] = sample(i, 1), b[i] = sample(i, 2), words[i] = (i * 29 + 7) % 31;
  for (int i = 0; i < N; i++) {
    limits[i] = (i * 3) % 7;
    for (int j = 0; j < N; j++) A[i][j] = sample(i * N + j, 3), B[i][j] = sample(i * N + j, 4);
  }
}

void EXPORT(fill)(int n) {
  for (int i = 0; i < n; i++) a[i] = b[i] + i;
}

void EXPORT(fill_to)(int first, int last) {
  for (int i = first; i < last; i++) a[i + 8] = i;
}

void EXPORT(count_down)(int n) {
  for (int i = n; i > 0; i--) a[i] = b[i] * i;
}

void EXPORT(count_down_unsigned)(u32 n) {
  while (n--) a[n] = b[n] - n;
}

void EXPORT(steps_of)(int step, int n) {
  if (step > 0)
    for (int i = 0; i < n; i += step) a[i] = b[i];
  else
    for (int i = n; i > 0; i += step) a[i] = b[i];
}

void EXPORT(not_equal)(int first, int last) {
  for (int i = first; i != last; i += 3) a[i] = b[i];
}

void EXPORT(triangle)(int n) {
  for (int i = 0; i < n; i++)
    for (int j = 0; j <= i; j++) A[i][j] = B[j][i] * 2;
}

void EXPORT(upper_triangle)(int n) {
  for (int i = 0; i < n; i++)
    for (int j = n - 1; j > i; j--) A[i][j] = A[j][i];
}

void EXPORT(trapezoid)(int n, int more) {
  for (int i = 0; i < n; i++)
    for (int j = i; j < i + more; j++) A[i][j] += B[j][i];
}

void EXPORT(tetrahedron)(int n) {
  for (int i = 0; i < n; i++)
    for (int j = 0; j <= i; j++)
      for (int k = j; k <= i; k++) A[i][j] += B[j][k];
}

void EXPORT(parity)(int n) {
  for (int i = 0; i < n; i++)
    if (i & 1)
      a[i] = b[i] + 1;
    else
      a[i] = b[i] - 1;
}

void EXPORT(guarded)(int n) {
  for (int i = 0; i < n; i++) {
    if (i > 2) a[i] = b[i];
    if (i < n - 2) words[i] = i;
    if (i == 5) b[0] = 1;
  }
}

void EXPORT(guarded_by_data)(int n) {
  for (int i = 0; i < n; i++) {
    if (b[i] > 0.5) a[i] = b[i];
    if (words[i] & 1) words[i]++;
  }
}

void EXPORT(guarded_by_outer)(int n, int at) {
  for (int i = 0; i < n; i++)
    for (int j = 0; j < n; j++)
      if (i < at)
        A[i][j] = B[i][j];
      else
        A[i][j] = B[j][i];
}

void EXPORT(band)(int n, int width) {
  for (int i = 0; i < n; i++)
    for (int j = i - width < 0 ? 0 : i - width; j <= (i + width >= n ? n - 1 : i + width); j++) A[i][j] = B[i][j] + 1;
}

void EXPORT(blocks_of_four)(int n) {
  int i = 0;
  for (; i + 3 < n; i += 4) a[i] = b[i], a[i + 1] = b[i + 1], a[i + 2] = b[i + 2], a[i + 3] = b[i + 3];
  for (; i < n; i++) a[i] = b[i];
}

void EXPORT(tiled)(int n) {
  for (int ii = 0; ii < n; ii += 4)
    for (int jj = 0; jj < n; jj += 4)
      for (int i = ii; i < (ii + 4 < n ? ii + 4 : n); i++)
        for (int j = jj; j < (jj + 4 < n ? jj + 4 : n); j++) A[i][j] = B[j][i];
}

void EXPORT(zero_inner)(int n, int m) {
  for (int i = 0; i < n; i++) {
    a[i] = 1;
    for (int j = 0; j < m; j++) A[i][j] = a[i];
  }
}

void EXPORT(negative_inner)(int n, int m) {
  for (int i = 0; i < n; i++) {
    double sum = i;
    for (int j = 0; j < m; j++) sum += A[i][j];
    a[i] = sum;
  }
}

int EXPORT(until_zero)(int n) {
  int i = 0;
  while (i < n && words[i] != 0) words[i++] *= 2;
  return i;
}

int EXPORT(find)(int n, int wanted) {
  for (int i = 0; i < n; i++)
    if (words[i] == wanted) return i;
  return -1;
}

void EXPORT(continued)(int n) {
  for (int i = 0; i < n; i++) {
    if (i % 3 == 0) continue;
    a[i] = b[i];
    if (i % 3 == 1) continue;
    b[i] = 0;
  }
}

void EXPORT(switched)(int n) {
  for (int i = 0; i < n; i++) switch (i & 3) {
      case 0: a[i] = 1; break;
      case 1: a[i] = b[i]; break;
      case 2: a[i] = b[i] * b[i]; break;
      default: words[i] = i;
    }
}

static __attribute__((noinline)) double outside(double x) { return x * x + 1; }

void EXPORT(calls)(int n) {
  for (int i = 0; i < n; i++) a[i] = outside(b[i]);
}

void EXPORT(calls_import)(int n) {
  for (int i = 0; i < n; i++) {
    a[i] = b[i];
    touch(i);
  }
}

int EXPORT(grows)(int n) {
  int sum = 0;
  for (int i = 0; i < n; i++) {
    a[i] = b[i];
    sum += (int)__builtin_wasm_memory_grow(0, 1);
  }
  return sum;
}

double EXPORT(last_value)(int n) {
  double last = 0;
  for (int i = 0; i < n; i++) {
    last = b[i] * 2;
    a[i] = last;
  }
  return last;
}

int EXPORT(exit_values)(int n, int m) {
  int i, j = 0, k = 0;
  for (i = 0; i < n; i++)
    for (j = 0; j < m; j++) words[i * m + j] = k++;
  return i * 10000 + j * 100 + k;
}

double EXPORT(sum_of_rows)(int n, int m) {
  double all = 0;
  for (int i = 0; i < n; i++) {
    double sum = 0;
    for (int j = 0; j < m; j++) sum += A[i][j];
    a[i] = sum;
    all += sum;
  }
  return all;
}

double EXPORT(maximum)(int n) {
  double most = b[0];
  for (int i = 1; i < n; i++) most = b[i] > most ? b[i] : most;
  return most;
}

int EXPORT(index_of_maximum)(int n) {
  int at = 0;
  for (int i = 1; i < n; i++)
    if (b[i] > b[at]) at = i;
  return at;
}

double EXPORT(dot)(int n) {
  double sum = 0;
  for (int i = 0; i < n; i++) sum += a[i] * b[i];
  return sum;
}

// Each scalar has the value that another had an iteration before.
void EXPORT(chained)(int n) {
  double p = 1, q = 2, r = 3;
  for (int i = 0; i < n; i++) {
    double t = p;
    p = q, q = r, r = t + b[i];
    a[i] = p;
  }
}

u32 EXPORT(fibonacci)(int n) {
  u32 x = 0, y = 1;
  for (int i = 0; i < n; i++) {
    u32 t = x + y;
    x = y, y = t;
    words[i] = (int)x;
  }
  return y;
}

void EXPORT(geometric)(int n) {
  int at = 1;
  for (int i = 0; i < n && at < 8 * N; i++, at *= 2) a[at] = i;
}

void EXPORT(square_index)(int n) {
  for (int i = 0; i < n; i++) a[i * i] = b[i];
}

void EXPORT(bound_from_memory)(int n) {
  for (int i = 0; i < n; i++)
    for (int j = 0; j < limits[i]; j++) A[i][j] = 1;
}

void EXPORT(bound_changes)(int n) {
  words[0] = n;
  for (int i = 0; i < words[0]; i++) words[i / 4] = n - i / 8;
}

void EXPORT(wide_counter)(int n) {
  for (i64 i = 0; i < n; i++) a[i] = (double)i + b[i];
}

void EXPORT(narrow_counter)(int n) {
  for (u8 i = 0; i < (u8)n; i++) a[i] = b[i] + i;
  for (i16 i = (i16)-n; i < 0; i++) a[i + n] += i;
}

void EXPORT(two_counters)(int n) {
  for (int i = 0, j = n; i < j; i++, j -= 2) a[i] = b[j];
}

void EXPORT(rotating)(int n) {
  int at = 0;
  for (int i = 0; i < 3 * n; i++) {
    a[at] += b[i];
    if (++at == n) at = 0;
  }
}

void EXPORT(large_trip)(int n) {
  for (u32 i = 0xfffffff0u; i != (u32)n; i++) words[i & 63] += 1;
}

void EXPORT(perfect_three)(int n, int m, int l) {
  for (int i = 0; i < n; i++)
    for (int j = 0; j < m; j++)
      for (int k = 0; k < l; k++) a[(i * m + j) * l + k] = b[(k * m + j) * n + i];
}

void EXPORT(imperfect_three)(int n, int m, int l) {
  for (int i = 0; i < n; i++) {
    a[i] = 0;
    for (int j = 0; j < m; j++) {
      A[i][j] = a[i];
      for (int k = 0; k < l; k++) A[i][j] += B[j][k];
      a[i] += A[i][j];
    }
    b[i] = a[i];
  }
}

void EXPORT(unswitched)(int n, int mode) {
  for (int i = 0; i < n; i++)
    for (int j = 0; j < n; j++) {
      if (mode)
        A[i][j] += 1;
      else
        A[i][j] = B[i][j] * A[i][j];
      if (mode > 5) words[i] = j;
    }
}

double EXPORT(with_local_array)(int n) {
  double rows[N], sum = 0;
  for (int i = 0; i < n; i++) rows[i] = b[i] * 2;
  for (int i = 0; i < n; i++) sum += rows[n - 1 - i] * a[i];
  return sum;
}

void EXPORT(clear_and_copy)(int n) {
  for (int i = 0; i < n; i++) {
    __builtin_memset(A[i], 0, sizeof A[i]);
    for (int j = 0; j < n; j++) A[i][j] += B[i][j];
  }
  __builtin_memcpy(B, A, sizeof A);
}
