#include <cstdio>
extern "C" __global__ void greet(const int *numbers) {
    int n = numbers[threadIdx.x];
    printf("%d|%5d|%-5d|%05d|%+d|%u|%x|%#X|%o|%lld|%hhd|%c|%%\n", n, n, n, n, n, n, n, n, n, (long long)n * 10000000000LL, n, 'a' + threadIdx.x);
    printf("%f|%.2f|%10.3e|%g|%s|%8.3s|%*d\n", n / 4.0, n / 3.0f, n * 1.0, n / 4.0, "text", "abcdef", 6, n);
}
extern "C" __global__ void endless_talk() {
    for (int i = 0; i < 64; i++) printf("%1024d\n", i);
}
extern "C" __global__ void quiet(int *out) { out[threadIdx.x] = threadIdx.x; }
extern "C" __global__ void hello() { printf("block %d, thread %d\n", blockIdx.x, threadIdx.x); }
