#include "program.cuh"

#define OPTIONS 8000000

extern "C" double spot[OPTIONS], strike[OPTIONS], years[OPTIONS], call[OPTIONS], put[OPTIONS];

// For x from 1/3 to 3.
static __device__ double logarithm(double x)
{
    double y = (x - 1) / (x + 1), z = y * y;
    double tail = 1.0 / 11 + z * (1.0 / 13 + z * (1.0 / 15 + z * (1.0 / 17 + z * (1.0 / 19 + z / 21))));
    return 2 * y * (1 + z * (1.0 / 3 + z * (1.0 / 5 + z * (1.0 / 7 + z * (1.0 / 9 + z * tail)))));
}

// By the 64th part of x, for x that is not far from 0.
static __device__ double exponential(double x)
{
    double y = x / 64;
    y = 1 + y * (1 + y / 2 * (1 + y / 3 * (1 + y / 4 * (1 + y / 5 * (1 + y / 6 * (1 + y / 7 * (1 + y / 8)))))));
    y *= y;
    y *= y;
    y *= y;
    y *= y;
    y *= y;
    return y * y;
}

// The normal distribution, by Abramowitz and Stegun 26.2.17.
static __device__ double normal(double x)
{
    double t = 1 / (1 + 0.2316419 * fabs(x));
    double tail = 0.3989422804014327 * exponential(-x * x / 2) * t *
                  (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))));
    return x < 0 ? tail : 1 - tail;
}

static __global__ void price(int n, double *spot, double *strike, double *years, double *call, double *put)
{
    const double rate = 0.02, volatility = 0.3;
    int i = X;
    if (i < n) {
        double spread = volatility * sqrt(years[i]);
        double growth = (rate + volatility * volatility / 2) * years[i];
        double d1 = (logarithm(spot[i] / strike[i]) + growth) / spread, d2 = d1 - spread;
        double discounted = strike[i] * exponential(-rate * years[i]);
        call[i] = spot[i] * normal(d1) - discounted * normal(d2);
        put[i] = discounted * normal(-d2) - spot[i] * normal(-d1);
    }
}

KERNELS(int n)
{
    OnDevice s(spot), k(strike), y(years), c(call), p(put);
    return timed([&] { price<<<line(n), LINE>>>(n, s, k, y, c, p); });
}
