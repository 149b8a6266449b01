// Each thread sorts its 16 numbers in an array of its own and finds the commonest of their low three bits.
extern "C" __global__ void local_array(const int* __restrict__ in, int* __restrict__ medians,
                                       unsigned char* __restrict__ modes, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int sorted[16];
    unsigned short counts[8] = {};
    for (int j = 0; j < 16; ++j) {
        int value = in[(size_t)j * n + i];
        ++counts[value & 7];
        int k = j;
        for (; k > 0 && sorted[k - 1] > value; --k) sorted[k] = sorted[k - 1];
        sorted[k] = value;
    }
    int mode = 0;
    for (int j = 1; j < 8; ++j)
        if (counts[j] > counts[mode]) mode = j;
    medians[i] = sorted[8];
    modes[i] = mode;
}
