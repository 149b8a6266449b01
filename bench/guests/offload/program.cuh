// What the kernels written by hand share: arrays of the C program on the device, the shapes of grids, and the time.
// Each thread computes one output, where outputs can be computed apart, in the order of the C program.
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

#define KERNELS(...) extern "C" __attribute__((visibility("default"))) double kernels(__VA_ARGS__)
#define X int(blockIdx.x * blockDim.x + threadIdx.x)
#define Y int(blockIdx.y * blockDim.y + threadIdx.y)
#define Z int(blockIdx.z)

static void check(cudaError_t error)
{
    if (error != cudaSuccess) {
        fprintf(stderr, "%s\n", cudaGetErrorString(error));
        exit(1);
    }
}

// An array's copy on the device, which is copied back when it ends.
class OnDevice {
    void *host, *device;
    size_t size_bytes;

public:
    template <class Array> explicit OnDevice(Array &array) : host(&array), size_bytes(sizeof array)
    {
        check(cudaMalloc(&device, size_bytes));
        check(cudaMemcpy(device, host, size_bytes, cudaMemcpyHostToDevice));
    }
    ~OnDevice()
    {
        check(cudaMemcpy(host, device, size_bytes, cudaMemcpyDeviceToHost));
        check(cudaFree(device));
    }
    template <class Row> operator Row *() const { return (Row *)device; }
};

#define LINE dim3(256)
#define TILE dim3(32, 8)

static inline dim3 line(int x) { return dim3((x + 255) / 256); }
static inline dim3 tiles(int x, int y, int z = 1) { return dim3((x + 31) / 32, (y + 7) / 8, z); }

// Returns the seconds from the begin of the first kernel to the end of the last one.
template <class Work> static double timed(Work work)
{
    cudaEvent_t begin, end;
    float taken_ms;
    check(cudaEventCreate(&begin));
    check(cudaEventCreate(&end));
    check(cudaEventRecord(begin));
    work();
    check(cudaGetLastError());
    check(cudaEventRecord(end));
    check(cudaEventSynchronize(end));
    check(cudaEventElapsedTime(&taken_ms, begin, end));
    return taken_ms / 1e3;
}
