// Loops that compilers make vectors of, and loops over vectors; the module of the corpus is built for SIMD.
// run: saxpy(37, 1.5)
// run: dot(37)
// run: dot_of_vectors(9)
// run: rows(9, 19)
// run: products_of_bytes(7, 21)
// run: sum_of_words(41)
// run: longs(23)
// run: scaled(33, 3)
// run: average(41)
// run: clamped(41)
// run: positive(29)
// run: larger(31)
// run: rounded(27)
// run: widened(27)
// run: every_other(13)
// run: transposed(4)
// run: shifted(26, 35)
// run: bits_of(21)
// run: normalised(9)
// run: last_pair(11)
#include "loops.h"

typedef float f4 __attribute__((vector_size(16)));
typedef double d2 __attribute__((vector_size(16)));
typedef int w4 __attribute__((vector_size(16)));

float p[4 * N], q[4 * N], r[4 * N];
double a[4 * N], b[4 * N], c[4 * N], M[N][N], y[N];
i8 s[4 * N], t[4 * N], S[N][N], T[N][N];
i16 h[4 * N], k[4 * N];
u8 u[4 * N], v[4 * N], w[4 * N];
int words[4 * N], counts[4 * N], P[N][N];
i64 wide[4 * N], far[4 * N];
f4 lanes[2 * N], others[2 * N];
d2 pairs[2 * N], doubles[2 * N];
w4 quads[2 * N];

void EXPORT(init)(void) {
  for (int i = 0; i < 4 * N; i++) {
    p[i] = (float)sample(i, 1) - 0.5f, q[i] = (float)sample(i, 2), r[i] = (float)sample(i, 3);
    a[i] = sample(i, 4) - 0.25, b[i] = sample(i, 5), c[i] = sample(i, 6);
    s[i] = (i8)(i * 37), t[i] = (i8)(i * 91 + 5), h[i] = (i16)(i * 7919), k[i] = (i16)(i * 104729);
    u[i] = (u8)(i * 53), v[i] = (u8)(i * 29 + 7), words[i] = i * 48271 - 99999;
    wide[i] = (i64)i * 1000003 * 7919 - 5, far[i] = (i64)i << 33;
  }
  for (int i = 0; i < N; i++)
    for (int j = 0; j < N; j++) M[i][j] = sample(i * N + j, 7), S[i][j] = (i8)(i * 31 + j), T[i][j] = (i8)(j * 17 - i);
  for (int i = 0; i < 2 * N; i++) {
    lanes[i] = (f4){p[i], q[i], r[i], 1.0f}, others[i] = (f4){q[i], r[i], p[i], 2.0f};
    pairs[i] = (d2){a[i], b[i]}, quads[i] = (w4){words[i], i, -i, 7};
  }
}

void EXPORT(saxpy)(int n, float alpha) {
  for (int i = 0; i < n; i++) q[i] += alpha * p[i];
}

double EXPORT(dot)(int n) {
  double sum = 0.0;
  for (int i = 0; i < n; i++) sum += a[i] * b[i];
  return sum;
}

double EXPORT(dot_of_vectors)(int n) {
  d2 sum = {0.0, 1.0};
  for (int i = 0; i < n; i++) sum += pairs[i] * pairs[i];
  return sum[0] - sum[1];
}

void EXPORT(rows)(int n, int m) {
  for (int i = 0; i < n; i++) {
    d2 sum = {0.0, 0.0};
    for (int j = 0; j + 2 <= m; j += 2) sum += *(d2 *)&M[i][j] * *(d2 *)&b[j];
    y[i] = sum[0] + sum[1];
  }
}

void EXPORT(products_of_bytes)(int n, int m) {
  for (int i = 0; i < n; i++)
    for (int j = 0; j < n; j++) {
      int sum = 0;
      for (int l = 0; l < m; l++) sum += S[i][l] * T[j][l];
      P[i][j] = sum;
    }
}

int EXPORT(sum_of_words)(int n) {
  int sum = 3;
  for (int i = 0; i < n; i++) sum += h[i] * k[i];
  return sum;
}

void EXPORT(longs)(int n) {
  for (int i = 0; i < n; i++) wide[i] = (wide[i] * 3 - far[i]) ^ (wide[i] >> 5);
}

void EXPORT(scaled)(int n, int by) {
  for (int i = 0; i < n; i++) h[i] = (i16)(k[i] * by + (h[i] >> 3));
}

void EXPORT(average)(int n) {
  for (int i = 0; i < n; i++) w[i] = (u8)((u[i] + v[i] + 1) / 2);
}

void EXPORT(clamped)(int n) {
  for (int i = 0; i < n; i++) {
    int sum = u[i] * 2 - v[i];
    w[i] = (u8)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
  }
}

void EXPORT(positive)(int n) {
  for (int i = 0; i < n; i++) r[i] = p[i] > 0.0f ? p[i] : 0.0f;
}

void EXPORT(larger)(int n) {
  for (int i = 0; i < n; i++) c[i] = a[i] < b[i] ? b[i] - a[i] : a[i] * 2.0, counts[i] = a[i] < b[i];
}

void EXPORT(rounded)(int n) {
  for (int i = 0; i < n; i++) {
    r[i] = __builtin_floorf(p[i] * 10.0f) + __builtin_sqrtf(q[i]);
    c[i] = __builtin_fabs(a[i]) + __builtin_trunc(b[i] * 9.0);
  }
}

void EXPORT(widened)(int n) {
  for (int i = 0; i < n; i++) {
    words[i] = h[i] + u[i], a[i] = words[i], r[i] = (float)u[i], c[i] = (double)p[i];
    counts[i] = (int)(b[i] * 1000.0);
  }
}

void EXPORT(every_other)(int n) {
  for (int i = 0; i < n; i++) r[i] = p[2 * i] * q[2 * i + 1], w[2 * i] = u[i], w[2 * i + 1] = v[i];
}

void EXPORT(transposed)(int n) {
  for (int i = 0; i < n; i++) {
    f4 one = lanes[2 * i], other = lanes[2 * i + 1];
    others[2 * i] = __builtin_shufflevector(one, other, 0, 4, 1, 5);
    others[2 * i + 1] = __builtin_shufflevector(one, other, 2, 6, 3, 7);
  }
}

void EXPORT(shifted)(int n, int by) {
  for (int i = 0; i < n; i++) words[i] = (words[i] << (by & 31)) + (int)((u32)words[i] >> 3), wide[i] <<= by & 63;
}

void EXPORT(bits_of)(int n) {
  for (int i = 0; i < n; i++) {
    w4 bits = (w4)lanes[i];
    quads[i] = (bits & 0x7fffff) | ((bits >> 23) ^ quads[i]);
  }
}

void EXPORT(normalised)(int n) {
  for (int i = 0; i < n; i++) {
    f4 square = lanes[i] * lanes[i];
    float length = square[0] + square[1] + square[2] + square[3];
    others[i] = lanes[i] / (f4){length, length, length, length};
  }
}

double EXPORT(last_pair)(int n) {
  d2 last = {1.0, 2.0};
  for (int i = 0; i < n; i++) {
    doubles[i] = pairs[i] + pairs[i];
    last = pairs[i] * pairs[i];
  }
  return last[0] - last[1];
}
