// Virtual functions, function pointers and a switch that becomes a jump table.
struct Shape {
    __device__ virtual float area() const = 0;
};
struct Square : Shape {
    float side;
    __device__ Square(float s) : side(s) {}
    __device__ float area() const override { return side * side; }
};
struct Circle : Shape {
    float radius;
    __device__ Circle(float r) : radius(r) {}
    __device__ float area() const override { return 3.14159265f * radius * radius; }
};

__device__ __noinline__ float area_of(const Shape& shape) { return shape.area(); }

extern "C" __global__ void areas(const float* __restrict__ in, float* __restrict__ out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Square square(in[i]);
    Circle circle(in[i]);
    const Shape* shapes[2] = {&square, &circle};
    out[i] = area_of(*shapes[i % 2]);
}

typedef int (*Operation)(int, int);
__device__ __noinline__ int add(int a, int b) { return a + b; }
__device__ __noinline__ int subtract(int a, int b) { return a - b; }
__device__ __noinline__ int multiply(int a, int b) { return a * b; }
__device__ Operation operations[3] = {add, subtract, multiply};

extern "C" __global__ void operate(const int* __restrict__ which, const int* __restrict__ a, const int* __restrict__ b,
                                   int* __restrict__ out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = operations[which[i] % 3](a[i], b[i]);
}

extern "C" __global__ void interpret(const unsigned char* __restrict__ code, int length, const float* __restrict__ in,
                                     float* __restrict__ out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float stack[8];
    int top = 0;
    stack[0] = in[i];
    for (int at = 0; at < length; ++at) {
        switch (code[at]) {
        case 0: stack[(top + 1) & 7] = stack[top & 7]; ++top; break;
        case 1: --top; stack[top & 7] += stack[(top + 1) & 7]; break;
        case 2: --top; stack[top & 7] *= stack[(top + 1) & 7]; break;
        case 3: stack[top & 7] = -stack[top & 7]; break;
        case 4: stack[top & 7] = sqrtf(fabsf(stack[top & 7])); break;
        case 5: stack[top & 7] += 1.0f; break;
        case 6: stack[top & 7] = floorf(stack[top & 7]); break;
        case 7: stack[top & 7] = __sinf(stack[top & 7]); break;
        default: stack[top & 7] = in[i]; break;
        }
    }
    out[i] = stack[top & 7];
}
