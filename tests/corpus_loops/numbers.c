// Every type of number and what compilers make of arithmetic on it.
// run: bytes_add(37)
// run: bytes_signed(37)
// run: shorts_scale(29, 3)
// run: shorts_unsigned(29)
// run: threshold(37, 100)
// run: words_mix(21)
// run: words_divide(21, 7)
// run: words_divide(21, 0)
// run: words_divide_each(21)
// run: longs_sum(19)
// run: longs_mix(19)
// run: longs_from_words(19)
// run: floats_scale(21, 1.5)
// run: floats_polynomial(21)
// run: floats_to_bytes(21)
// run: doubles_to_words(21)
// run: doubles_to_floats(21)
// run: words_to_doubles(21)
// run: special(24)
// run: special_floats(24)
// run: not_numbers(24)
// run: minimum_maximum(24)
// run: rounding(24)
// run: signs(24)
// run: square_roots(24)
// run: select_each(24)
// run: clamp(24, 0.25, 0.75)
// run: bits(21)
// run: rotate(21)
// run: hash(21)
// run: counter_as_number(15)
// run: counter_as_long(15)
// run: checksum(30)
// run: pixels(6, 7)
// run: interleaved(11)
// run: structures(9)
// run: complex_product(9)
#include "loops.h"

#define M (2 * N)
u8 ub[4 * M], vb[4 * M];
i8 sb[M];
i16 sh[M];
u16 uh[M];
int w[M], v[M];
i64 l[M], k[M];
float f[M], g[M];
double d[M], e[M];
struct point { float x, y; int tag; double weight; };
struct point points[M];

static double specials(int at) {
  switch (at % 12) {
    case 0: return 0.0;
    case 1: return -0.0;
    case 2: return __builtin_inf();
    case 3: return -__builtin_inf();
    case 4: return __builtin_nan("");
    case 5: return 5e-324;
    case 6: return -1e308;
    case 7: return 2147483648.5;
    case 8: return -2.5;
    case 9: return 0.5;
    case 10: return 1e-310;
    default: return 1.5 + at;
  }
}

void EXPORT(init)(void) {
  for (int i = 0; i < 4 * M; i++) ub[i] = (u8)(i * 73 + 11), vb[i] = (u8)(i * 31 + 5);
  for (int i = 0; i < M; i++) {
    sb[i] = (i8)(i * 91), sh[i] = (i16)(i * 7919), uh[i] = (u16)(i * 9973);
    w[i] = (int)((u32)i * 2654435761u), v[i] = (i * 37) % 11 - 5;
    l[i] = (i64)((u64)i * 11400714819323198485ull), k[i] = i * 1000003ll - 77;
    f[i] = (float)sample(i, 1) * 300 - 20, g[i] = (float)specials(i * 5);
    d[i] = specials(i), e[i] = specials(i * 7 + 3);
    points[i].x = (float)i, points[i].y = (float)-i, points[i].tag = i, points[i].weight = sample(i, 2);
  }
}

void EXPORT(bytes_add)(int n) {
  for (int i = 0; i < n; i++) ub[i] = (u8)(ub[i] + vb[i]);
}

void EXPORT(bytes_signed)(int n) {
  for (int i = 0; i < n; i++) sb[i] = (i8)(sb[i] / 2 - 3);
}

void EXPORT(shorts_scale)(int n, int by) {
  for (int i = 0; i < n; i++) sh[i] = (i16)(sh[i] * by >> 2);
}

void EXPORT(shorts_unsigned)(int n) {
  for (int i = 0; i < n; i++) uh[i] = (u16)((uh[i] + uh[n - 1]) / 2);
}

void EXPORT(threshold)(int n, int at) {
  for (int i = 0; i < n; i++) vb[i] = ub[i] > at ? 255 : 0;
}

void EXPORT(words_mix)(int n) {
  for (int i = 0; i < n; i++) w[i] = (w[i] ^ (int)((u32)w[i] >> 13)) + (v[i] << 3) - (w[i] >> 5) * v[i];
}

void EXPORT(words_divide)(int n, int by) {
  for (int i = 0; i < n; i++) w[i] = w[i] / by + w[i] % by;
}

void EXPORT(words_divide_each)(int n) {
  for (int i = 0; i < n; i++) w[i] = w[i] / v[i];
}

i64 EXPORT(longs_sum)(int n) {
  i64 sum = 0;
  for (int i = 0; i < n; i++) sum += l[i];
  return sum;
}

void EXPORT(longs_mix)(int n) {
  for (int i = 0; i < n; i++) l[i] = (l[i] * k[i] + 12345) ^ (i64)((u64)l[i] >> 7);
}

void EXPORT(longs_from_words)(int n) {
  for (int i = 0; i < n; i++) l[i] = (i64)w[i] * v[i] + (u32)w[i];
}

void EXPORT(floats_scale)(int n, float by) {
  for (int i = 0; i < n; i++) f[i] = f[i] * by + g[i];
}

void EXPORT(floats_polynomial)(int n) {
  for (int i = 0; i < n; i++) {
    float x = f[i] * 0.01f;
    f[i] = ((x * 0.3f + 1.7f) * x - 0.2f) * x / (1 + x * x);
  }
}

void EXPORT(floats_to_bytes)(int n) {
  for (int i = 0; i < n; i++) ub[i] = (u8)(f[i] < 0 ? 0 : f[i] > 255 ? 255 : f[i]);
}

void EXPORT(doubles_to_words)(int n) {
  for (int i = 0; i < n; i++) w[i] = (int)e[i];
}

void EXPORT(doubles_to_floats)(int n) {
  for (int i = 0; i < n; i++) f[i] = (float)d[i], e[i] = g[i];
}

void EXPORT(words_to_doubles)(int n) {
  for (int i = 0; i < n; i++) d[i] = w[i], e[i] = (u32)w[i], f[i] = (float)l[i], g[i] = (float)(u64)l[i];
}

void EXPORT(special)(int n) {
  for (int i = 0; i < n; i++) d[i] = d[i] * e[i] + d[i] / e[n - 1 - i] - e[i];
}

void EXPORT(special_floats)(int n) {
  for (int i = 0; i < n; i++) f[i] = g[i] / (f[i] - f[i]) + g[i] * g[n - 1 - i];
}

void EXPORT(not_numbers)(int n) {
  for (int i = 0; i < n; i++) w[i] = (d[i] < e[i]) | (d[i] == e[i]) << 1 | (d[i] != d[i]) << 2 | (d[i] >= e[i]) << 3;
}

void EXPORT(minimum_maximum)(int n) {
  for (int i = 0; i < n; i++) {
    double x = d[i], y = e[i];
    d[i] = x < y ? x : y;
    e[i] = x > y ? x : y;
    w[i] = w[i] < v[i] ? w[i] : v[i];
  }
}

void EXPORT(rounding)(int n) {
  for (int i = 0; i < n; i++)
    d[i] = __builtin_floor(d[i]) + __builtin_ceil(e[i]), f[i] = __builtin_truncf(f[i]), g[i] = __builtin_rintf(g[i]);
}

void EXPORT(signs)(int n) {
  for (int i = 0; i < n; i++) d[i] = __builtin_copysign(d[i], e[i]), e[i] = -__builtin_fabs(e[i]), f[i] = -f[i];
}

void EXPORT(square_roots)(int n) {
  for (int i = 0; i < n; i++) d[i] = __builtin_sqrt(d[i]), f[i] = __builtin_sqrtf(f[i]);
}

void EXPORT(select_each)(int n) {
  for (int i = 0; i < n; i++) {
    w[i] = v[i] ? w[i] : -1;
    d[i] = v[i] > 0 ? e[i] : d[i];
    l[i] = w[i] == v[i] ? l[i] : k[i];
  }
}

void EXPORT(clamp)(int n, double low, double high) {
  for (int i = 0; i < n; i++) d[i] = d[i] < low ? low : d[i] > high ? high : d[i];
}

void EXPORT(bits)(int n) {
  for (int i = 0; i < n; i++) {
    v[i] = __builtin_popcount(w[i]) + __builtin_clz(w[i] | 1) * __builtin_ctz(w[i] | 1 << 20);
    k[i] = __builtin_popcountll(l[i]) + __builtin_clzll(l[i] | 1);
  }
}

void EXPORT(rotate)(int n) {
  for (int i = 0; i < n; i++) w[i] = (int)((u32)w[i] << 7 | (u32)w[i] >> 25), l[i] = l[i] << (i & 63) | (i64)((u64)l[i] >> (64 - i & 63));
}

void EXPORT(hash)(int n) {
  for (int i = 0; i < n; i++) {
    u32 x = (u32)w[i];
    x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu, x ^= x >> 16;
    w[i] = (int)x;
  }
}

void EXPORT(counter_as_number)(int n) {
  for (int i = 0; i < n; i++) {
    d[i] = i * 0.5, f[i] = (float)(n - i), w[i] = i * 1000000007 + 3, ub[i] = (u8)(i * 50);
    v[i] = i > 5 ? i : -i;
  }
}

void EXPORT(counter_as_long)(int n) {
  for (int i = 0; i < n; i++) l[i] = (i64)i << 33, k[i] = (i64)(i - 7) * 5000000000ll, d[i] = (double)(i64)(i - 3);
}

u32 EXPORT(checksum)(int n) {
  u32 a = 1, b = 0;
  for (int i = 0; i < n; i++) {
    a = (a + ub[i]) % 65521;
    b = (b + a) % 65521;
  }
  return b << 16 | a;
}

void EXPORT(pixels)(int w, int h) {
  for (int y = 0; y < h; y++)
    for (int x = 0; x < w; x++) {
      u8 *p = &ub[(y * w + x) * 4];
      u32 grey = (p[0] * 77u + p[1] * 150u + p[2] * 29u) >> 8;
      p[0] = p[1] = p[2] = (u8)grey;
    }
}

void EXPORT(interleaved)(int n) {
  for (int i = 0; i < n; i++) d[2 * i] = e[i], d[2 * i + 1] = e[n + i];
}

void EXPORT(structures)(int n) {
  for (int i = 0; i < n; i++) {
    points[i].x += points[i].y * (float)points[i].weight;
    points[i].weight = points[i].x;
    points[i].tag++;
  }
}

void EXPORT(complex_product)(int n) {
  for (int i = 0; i < n; i++) {
    double re = d[2 * i] * e[2 * i] - d[2 * i + 1] * e[2 * i + 1];
    double im = d[2 * i] * e[2 * i + 1] + d[2 * i + 1] * e[2 * i];
    d[2 * i] = re, d[2 * i + 1] = im;
  }
}
