// Loops that reduce many terms to one, in cells and in memory; integers, the least and the greatest of floats.
// run: sum(1101)
// run: count_above(1101, 5)
// run: bits(2203)
// run: wide(1101)
// run: least_unsigned(1101)
// run: sum_and_least(1101)
// run: sum_beside_stores(1101)
// run: matrix(34)
// run: two_in_memory(1101)
// run: in_memory_that_it_reads(1101)
// run: prefix_sums(1101)
// run: largest(1101)
// run: largest_by_instruction(1101)
// run: least_of_zeros(1101, 1)
#include "loops.h"
#define MOST 2400

int a[MOST], b[MOST], masks[MOST], totals[8], pairs[2 * 8200];
double d[MOST], zeros[MOST];
float f[MOST];
u64 words[MOST];
int *whole = a, *other = b, *place = totals;

void EXPORT(init)(void) {
  u32 s = 1;
  for (int i = 0; i < MOST; i++) {
    s = s * 1664525u + 1013904223u;
    a[i] = (int)s;
    b[i] = (int)(s >> 7) - 999;
    masks[i] = ~(1 << (i % 13 * 2));
    d[i] = (double)(int)s / 4096;
    f[i] = (float)(int)(s >> 3);
    words[i] = ((u64)s << 32) ^ (s * 77u);
  }
  for (int i = 0; i < 2 * 8200; i++) pairs[i] = i * i;
  totals[1] = 5;
}

void EXPORT(set_places)(int *one, int *two, int *three) { whole = one, other = two, place = three; }

int EXPORT(sum)(int n) {
  int s = 0;
  for (int i = 0; i < n; i++) s += a[i];
  return s;
}

int EXPORT(count_above)(int n, int least) {
  int s = 0;
  for (int i = 0; i < n; i++)
    if (a[i] > least) s++;
  return s;
}

int EXPORT(dot)(int n) {
  int s = 0;
  for (int i = 0; i < n; i++) s += a[i] * b[i];
  return s;
}

int EXPORT(product)(int n) {
  int s = 1;
  for (int i = 0; i < n; i++) s *= a[i] | 1;
  return s;
}

int EXPORT(minus)(int n) {
  int s = 7;
  for (int i = 0; i < n; i++) s -= a[i];
  return s;
}

int EXPORT(bits)(int n) {
  int every = -1, some = 0;
  u64 odd = 7;
  for (int i = 0; i < n; i++) every &= masks[i], some |= b[i] & 1029, odd ^= words[i];
  return every ^ some ^ (int)(odd >> 32) ^ (int)odd;
}

i64 EXPORT(wide)(int n) {
  i64 s = 0;
  for (int i = 0; i < n; i++) s += a[i];
  return s;
}

int EXPORT(largest_int)(int n) {
  int s = a[0];
  for (int i = 1; i < n; i++) s = a[i] > s ? a[i] : s;
  return s;
}

u32 EXPORT(least_unsigned)(int n) {
  u32 s = ~0u;
  for (int i = 0; i < n; i++) s = (u32)a[i] < s ? (u32)a[i] : s;
  return s;
}

int EXPORT(sum_and_least)(int n) {
  int s = 0, least = a[0];
  for (int i = 0; i < n; i++) s += a[i], least = a[i] < least ? a[i] : least;
  return s ^ least;
}

int EXPORT(sum_of_some)(int n) {
  int s = 0;
  for (int i = 0; i < n; i++)
    if (a[i] & 1) s += b[i];
    else s -= 3 * b[i];
  return s;
}

int EXPORT(sum_beside_stores)(int n) {
  int s = 0;
  for (int i = 0; i < n; i++) b[i] = a[i] * 3, s += a[i];
  return s;
}

int EXPORT(matrix)(int n) {
  int s = 0;
  for (int i = 0; i < n; i++)
    for (int j = 0; j < n; j++) s += a[i * n + j] * b[j];
  return s;
}

int EXPORT(many_short_rows)(int n) {
  int s = 0;
  for (int i = 0; i < n; i++) {
    int row = 0;
    for (int j = 0; j < 2; j++) row = row * 3 + pairs[2 * i + j];
    s ^= row;
  }
  return s;
}

void EXPORT(in_memory)(int n) {
  int *to = place, *from = whole;
  for (int i = 0; i < n; i++) *to += from[i];
}

void EXPORT(in_memory_beside_stores)(int n) {
  int *to = place, *from = whole, *beside = other;
  for (int i = 0; i < n; i++) {
    beside[i] = from[i] * 3;
    to[1] += from[i];
  }
}

void EXPORT(two_in_memory)(int n) {
  int *to = place, *from = whole;
  for (int i = 0; i < n; i++) {
    to[0] += from[i] > 3;
    to[4] ^= from[i];
  }
}

void EXPORT(in_memory_that_it_reads)(int n) {
  int *to = whole + 500, *from = whole;
  for (int i = 0; i < n; i++) *to += from[i];
}

int EXPORT(prefix_sums)(int n) {
  int s = 0;
  for (int i = 0; i < n; i++) s += a[i], b[i] = s;
  return s;
}

int EXPORT(remainders)(int n) {
  int s = 1;
  for (int i = 0; i < n; i++) s = s * 5 + a[i];
  return s;
}

double EXPORT(sum_of_doubles)(int n) {
  double s = 0;
  for (int i = 0; i < n; i++) s += d[i];
  return s;
}

double EXPORT(largest)(int n) {
  double s = d[0];
  for (int i = 1; i < n; i++)
    if (d[i] > s) s = d[i];
  return s;
}

double EXPORT(least)(int n) {
  double s = d[0];
  for (int i = 1; i < n; i++) s = d[i] < s ? d[i] : s;
  return s;
}

double EXPORT(largest_of_matrix)(int n) {
  double s = d[0];
  for (int i = 0; i < n; i++)
    for (int j = 0; j < n; j++) s = d[i * n + j] > s ? d[i * n + j] : s;
  return s;
}

double EXPORT(largest_by_instruction)(int n) {
  double s = d[0];
  for (int i = 1; i < n; i++) s = __builtin_wasm_max_f64(s, d[i]);
  return s;
}

double EXPORT(least_of_zeros)(int n, int negative_too) {
  if (negative_too) zeros[n / 2] = -0.0;
  double s = 3;
  for (int i = 0; i < n; i++) s = zeros[i] < s ? zeros[i] : s;
  return s;
}

double EXPORT(largest_of_zeros)(int n, int negative_too) {
  zeros[3] = -2;
  if (negative_too) zeros[0] = -0.0;
  double s = -1;
  for (int i = 0; i < n; i++) s = zeros[i] > s ? zeros[i] : s;
  return s;
}

double EXPORT(largest_beside_nan)(int n) {
  d[n / 2] = __builtin_nan("");
  double s = -1;
  for (int i = 0; i < n; i++) s = d[i] > s ? d[i] : s;
  return s;
}

int EXPORT(largest_compared)(int n) {
  d[n / 2] = __builtin_nan("");
  double s = -1e300;
  for (int i = 0; i < n; i++) s = d[i] > s ? d[i] : s;
  return s > 12 ? 3 : 4;
}

float EXPORT(widest_float)(int n) {
  float s = 0;
  for (int i = 0; i < n; i++) s = f[i] > s ? f[i] : s;
  return s;
}
