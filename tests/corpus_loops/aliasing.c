// Loops whose memory accesses depend on each other, by the program's text or by the pointers that it is given.
// run: in_place(15)
// run: in_place_backwards(15)
// run: overlapping(0, 0, 12)
// run: overlapping(0, 1, 12)
// run: overlapping(1, 0, 12)
// run: overlapping(0, 12, 12)
// run: overlapping(5, 2, 9)
// run: bytes_over_words(0, 0, 12)
// run: bytes_over_words(3, 0, 12)
// run: bytes_over_words(0, 47, 12)
// run: unaligned(1, 9)
// run: unaligned(4, 9)
// run: scatter(20)
// run: gather(20)
// run: chase(9)
// run: list_sum(12)
// run: one_cell(12)
// run: row_of_itself(8)
// run: diagonal_shift(8)
// run: rows_apart(7)
// run: two_views(9, 5)
// run: halves_of_words(9)
// run: wrapped_offset(4294967280, 6)
// run: wrapped_index(3000000000, 5)
// run: beyond_the_end(131064, 9)
// run: below_zero(16, 9)
// run: modulo(20, 5)
// run: reversed(12)
// run: swapped(12)
// run: copy_forward(3, 0, 16)
// run: copy_forward(0, 3, 16)
// run: set_to_zero(12)
// run: buffers_swap(3, 12)
// run: even_and_odd(11)
// run: skewed(7)
#include "loops.h"

double a[4 * N], b[4 * N];
double A[N][N], B[N][N];
int order[N], words[4 * N], next[N];
u8 bytes[16 * N];

void EXPORT(init)(void) {
  for (int i = 0; i < 4 * N; i++) a[i] = sample(i, 1), b[i] = sample(i, 2), words[i] = i * 1103515245 + 12345;
  for (int i = 0; i < N; i++) {
    order[i] = (i * i + 3) % 13, next[i] = (i * 5 + 1) % N;
    for (int j = 0; j < N; j++) A[i][j] = sample(i * N + j, 3), B[i][j] = sample(i * N + j, 4);
  }
  for (int i = 0; i < 16 * N; i++) bytes[i] = (u8)(i * 37);
}

void EXPORT(in_place)(int n) {
  for (int i = 1; i < n - 1; i++) a[i] = 0.5 * (a[i - 1] + a[i + 1]);
}

void EXPORT(in_place_backwards)(int n) {
  for (int i = n - 2; i > 0; i--) a[i] = 0.5 * (a[i - 1] + a[i + 1]);
}

void EXPORT(overlapping)(int to, int from, int n) {
  double *p = a + to, *q = a + from;
  for (int i = 0; i < n; i++) p[i] = q[i] * 2 + 1;
}

void EXPORT(bytes_over_words)(int at, int first, int n) {
  u8 *p = (u8 *)words + at;
  for (int i = 0; i < n; i++) p[i] = (u8)(words[i] + ((u8 *)words)[first + i]);
}

void EXPORT(unaligned)(int by, int n) {
  double *p = (double *)(bytes + by);
  for (int i = 0; i < n; i++) p[i] = a[i];
}

void EXPORT(scatter)(int n) {
  for (int i = 0; i < n; i++) a[order[i]] = b[i];
}

void EXPORT(gather)(int n) {
  for (int i = 0; i < n; i++) a[i] = b[order[i]];
}

int EXPORT(chase)(int n) {
  int at = 0;
  for (int i = 0; i < n; i++) at = next[at];
  return at;
}

struct node { int value; struct node *next; };
struct node nodes[N];

int EXPORT(list_sum)(int n) {
  for (int i = 0; i < n; i++) nodes[i].value = i * 3, nodes[i].next = i + 1 < n ? &nodes[i + 1] : 0;
  int sum = 0;
  for (struct node *p = n > 0 ? nodes : 0; p; p = p->next) sum += p->value;
  return sum;
}

void EXPORT(one_cell)(int n) {
  for (int i = 0; i < n; i++) a[3] = a[3] * b[i] + i;
}

void EXPORT(row_of_itself)(int n) {
  for (int i = 0; i < n; i++)
    for (int j = 0; j < n; j++) A[i][j] += A[0][j];
}

void EXPORT(diagonal_shift)(int n) {
  for (int i = 1; i < n; i++)
    for (int j = 1; j < n; j++) A[i][j] = A[i - 1][j - 1] + B[i][j];
}

void EXPORT(rows_apart)(int n) {
  for (int i = 0; i < n; i++)
    for (int j = 0; j < n; j++) a[i * n + j] = a[i * n + j] + (i > 0 ? a[(i - 1) * n + j] : 0);
}

// Two shapes of one array: rows of 9 and rows of 5.
void EXPORT(two_views)(int n, int m) {
  for (int i = 0; i < m; i++)
    for (int j = 0; j < n; j++) a[i * n + j] = a[j * m + i] + 1;
}

void EXPORT(halves_of_words)(int n) {
  u16 *halves = (u16 *)words;
  for (int i = 0; i < n; i++) {
    words[i] = words[i] * 3 + 1;
    halves[2 * i + 1] ^= 0x55aa;
  }
}

// The pointer runs over the end of the address space.
void EXPORT(wrapped_offset)(u32 at, int n) {
  volatile int *unused = words;
  for (int i = 0; i < n; i++) *(int *)(at + (u32)words + 16 + 4 * (u32)i) = i;
}

void EXPORT(wrapped_index)(u32 by, int n) {
  for (u32 i = 0; i < (u32)n; i++) words[(i * by) & 31] += (int)i;
}

void EXPORT(beyond_the_end)(u32 at, int n) {
  for (int i = 0; i < n; i++) ((double *)(at + 65536 * 2))[i] = 1;
}

void EXPORT(below_zero)(u32 at, int n) {
  double *p = (double *)at;
  for (int i = 0; i < n; i++) *p-- = i;
}

void EXPORT(modulo)(int n, int m) {
  for (int i = 0; i < n; i++) a[i % 4] += b[i];
  for (int i = 0; i < n; i++) b[i % m] += 1;
}

void EXPORT(reversed)(int n) {
  for (int i = 0; i < n; i++) a[i] = a[n - 1 - i];
}

void EXPORT(swapped)(int n) {
  for (int i = 0; i < n / 2; i++) {
    double t = a[i];
    a[i] = a[n - 1 - i];
    a[n - 1 - i] = t;
  }
}

void EXPORT(copy_forward)(int to, int from, int n) {
  for (int i = 0; i < n; i++) bytes[to + i] = bytes[from + i];
}

void EXPORT(set_to_zero)(int n) {
  for (int i = 0; i < n; i++)
    for (int j = 0; j < n; j++) A[i][j] = 0;
}

void EXPORT(buffers_swap)(int steps, int n) {
  double *p = a, *q = b;
  for (int t = 0; t < steps; t++) {
    for (int i = 1; i < n - 1; i++) q[i] = p[i - 1] + p[i + 1];
    double *r = p;
    p = q, q = r;
  }
}

void EXPORT(even_and_odd)(int n) {
  for (int i = 0; i < n; i++) a[2 * i] = a[2 * i + 1] * 0.5;
  for (int i = 0; i < n; i++) a[2 * i + 1] = a[i];
}

void EXPORT(skewed)(int n) {
  for (int i = 0; i < n; i++)
    for (int j = i; j < n + i; j++) A[i][j - i] = B[j - i][i] + j;
}
