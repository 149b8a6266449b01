// Integer intrinsics: wide division, bits, bytes, funnel shifts, dot products.
extern "C" __global__ void integers(const unsigned* __restrict__ a, const unsigned* __restrict__ b,
                                    unsigned long long* __restrict__ out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned x = a[i], y = b[i] | 1u;
    unsigned long long wide = ((unsigned long long)x << 32) | y;
    unsigned long long sum = wide / (y + 3ull) + wide % (x | 1ull) + x / y + x % 10u + (int)x / 7;
    sum += __popc(x) + __popcll(wide) + __clz(x) + __clzll(wide) + __ffs(y) + __brev(x) + __brevll(wide);
    sum += __byte_perm(x, y, 0x1537) + __funnelshift_l(x, y, x & 31) + __funnelshift_rc(x, y, 40);
    sum += __umulhi(x, y) + __mul64hi(wide, x) + __umul64hi(wide, wide) + __sad((int)x, (int)y, 5u) + __mul24(x, y);
    sum += __dp4a((int)x, (int)y, 9) + __dp2a_lo((int)x, (int)y, 9) + __vadd4(x, y) + __vmaxs2(x, y) + __vabsdiffu4(x, y);
    sum += __uhadd(x, y) + __urhadd(x, y) + min((int)x, (int)y) + llmax((long long)x, (long long)y) + (x << (y & 63));
    out[i] = sum;
}
