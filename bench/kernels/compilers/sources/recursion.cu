// A recursive quicksort of each thread's numbers.
__device__ void sort(int* data, int low, int high)
{
    if (low >= high) return;
    int pivot = data[(low + high) / 2], i = low, j = high;
    while (i <= j) {
        while (data[i] < pivot) ++i;
        while (data[j] > pivot) --j;
        if (i <= j) {
            int c = data[i];
            data[i++] = data[j];
            data[j--] = c;
        }
    }
    sort(data, low, j);
    sort(data, i, high);
}

extern "C" __global__ void quicksort(int* data, int each)
{
    sort(data + (blockIdx.x * blockDim.x + threadIdx.x) * each, 0, each - 1);
}
