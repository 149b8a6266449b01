// Small whole computations.
// run: bodies(3, 7, 0.01)
// run: mandelbrot(7, 6, 12)
// run: option_prices(19, 0.02, 0.3)
// run: convolution(9, 10)
// run: convolution_any(9, 10, 3, 3)
// run: kmeans(13, 3, 4)
// run: histogram(20)
// run: prefix_sum(20)
// run: transpose(9)
// run: softmax(6, 7)
#include "loops.h"

double px[N], py[N], pz[N], vx[N], vy[N], vz[N], mass[N];
int counts[N][N];
double spot[N], strike[N], years[N], price[N];
float image[N][N], filter[5][5], blurred[N][N];
double points[N][4], centers[4][4], sums[4][4];
int nearest[N], members[4], bins[16], values[N], sums_before[N];
double M[N][N], W[N][N];

void EXPORT(init)(void) {
  for (int i = 0; i < N; i++) {
    px[i] = sample(i, 1), py[i] = sample(i, 2), pz[i] = sample(i, 3), mass[i] = 1 + sample(i, 4);
    vx[i] = sample(i, 5), vy[i] = sample(i, 6), vz[i] = sample(i, 7);
    spot[i] = 50 + 100 * sample(i, 8), strike[i] = 50 + 100 * sample(i, 9), years[i] = 0.25 + sample(i, 10);
    values[i] = (i * 7 + 3) & 15;
    for (int j = 0; j < N; j++) image[i][j] = (float)sample(i * N + j, 11), M[i][j] = sample(i * N + j, 12);
    for (int j = 0; j < 4; j++) points[i][j] = sample(i * 4 + j, 13);
  }
  for (int i = 0; i < 5; i++)
    for (int j = 0; j < 5; j++) filter[i][j] = (float)sample(i * 5 + j, 14);
  for (int i = 0; i < 4; i++)
    for (int j = 0; j < 4; j++) centers[i][j] = sample(i * 4 + j, 15);
}

void EXPORT(bodies)(int steps, int n, double dt) {
  for (int t = 0; t < steps; t++) {
    for (int i = 0; i < n; i++) {
      double ax = 0, ay = 0, az = 0;
      for (int j = 0; j < n; j++) {
        double dx = px[j] - px[i], dy = py[j] - py[i], dz = pz[j] - pz[i];
        double r2 = dx * dx + dy * dy + dz * dz + 1e-3;
        double f = mass[j] / (r2 * __builtin_sqrt(r2));
        ax += f * dx, ay += f * dy, az += f * dz;
      }
      vx[i] += dt * ax, vy[i] += dt * ay, vz[i] += dt * az;
    }
    for (int i = 0; i < n; i++) px[i] += dt * vx[i], py[i] += dt * vy[i], pz[i] += dt * vz[i];
  }
}

// The inner loop ends on data: only that much of it is run by each point.
void EXPORT(mandelbrot)(int w, int h, int most) {
  for (int i = 0; i < h; i++)
    for (int j = 0; j < w; j++) {
      double cr = 3.0 * j / w - 2.0, ci = 2.0 * i / h - 1.0, zr = 0, zi = 0;
      int k = 0;
      while (k < most && zr * zr + zi * zi < 4.0) {
        double next = zr * zr - zi * zi + cr;
        zi = 2 * zr * zi + ci;
        zr = next;
        k++;
      }
      counts[i][j] = k;
    }
}

static inline double logarithm(double x) {
  double y = (x - 1) / (x + 1), z = y * y;
  return 2 * y * (1 + z * (1.0 / 3 + z * (1.0 / 5 + z * (1.0 / 7 + z / 9))));
}

static inline double exponential(double x) {
  return 1 + x * (1 + x / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5))));
}

static inline double normal(double x) {
  double t = 1 / (1 + 0.2316419 * __builtin_fabs(x));
  double tail = 0.39894228 * exponential(-x * x / 2) * t *
                (0.31938153 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))));
  return x < 0 ? tail : 1 - tail;
}

void EXPORT(option_prices)(int n, double rate, double volatility) {
  for (int i = 0; i < n; i++) {
    double root = __builtin_sqrt(years[i]);
    double d1 = (logarithm(spot[i] / strike[i]) + (rate + volatility * volatility / 2) * years[i]) / (volatility * root);
    double d2 = d1 - volatility * root;
    price[i] = spot[i] * normal(d1) - strike[i] * exponential(-rate * years[i]) * normal(d2);
  }
}

void EXPORT(convolution)(int w, int h) {
  for (int i = 0; i < h - 4; i++)
    for (int j = 0; j < w - 4; j++) {
      float sum = 0;
      for (int a = 0; a < 5; a++)
        for (int b = 0; b < 5; b++) sum += filter[a][b] * image[i + a][j + b];
      blurred[i][j] = sum;
    }
}

void EXPORT(convolution_any)(int w, int h, int fw, int fh) {
  for (int i = 0; i <= h - fh; i++)
    for (int j = 0; j <= w - fw; j++) {
      float sum = 0;
      for (int a = 0; a < fh; a++)
        for (int b = 0; b < fw; b++) sum += filter[a][b] * image[i + a][j + b];
      blurred[i][j] = sum < 0 ? 0 : sum;
    }
}

void EXPORT(kmeans)(int n, int k, int d) {
  for (int i = 0; i < n; i++) {
    double best = 1e300;
    int chosen = 0;
    for (int c = 0; c < k; c++) {
      double distance = 0;
      for (int j = 0; j < d; j++) distance += (points[i][j] - centers[c][j]) * (points[i][j] - centers[c][j]);
      if (distance < best) best = distance, chosen = c;
    }
    nearest[i] = chosen;
  }
  for (int c = 0; c < k; c++) {
    members[c] = 0;
    for (int j = 0; j < d; j++) sums[c][j] = 0;
  }
  for (int i = 0; i < n; i++) {
    members[nearest[i]]++;
    for (int j = 0; j < d; j++) sums[nearest[i]][j] += points[i][j];
  }
  for (int c = 0; c < k; c++)
    if (members[c] > 0)
      for (int j = 0; j < d; j++) centers[c][j] = sums[c][j] / members[c];
}

void EXPORT(histogram)(int n) {
  for (int i = 0; i < n; i++) bins[values[i]]++;
}

int EXPORT(prefix_sum)(int n) {
  int sum = 0;
  for (int i = 0; i < n; i++) {
    sums_before[i] = sum;
    sum += values[i];
  }
  return sum;
}

void EXPORT(transpose)(int n) {
  for (int i = 0; i < n; i++)
    for (int j = 0; j < n; j++) W[j][i] = M[i][j];
}

void EXPORT(softmax)(int rows, int columns) {
  for (int i = 0; i < rows; i++) {
    double most = M[i][0], sum = 0;
    for (int j = 1; j < columns; j++) most = M[i][j] > most ? M[i][j] : most;
    for (int j = 0; j < columns; j++) {
      W[i][j] = exponential(M[i][j] - most);
      sum += W[i][j];
    }
    for (int j = 0; j < columns; j++) W[i][j] /= sum;
  }
}
