// Counts bytes into 256 bins twice: with atomics in global memory, and with a copy of the bins in each block's shared
// memory. The bytes are a window of this program's memory, the bins are a device buffer.
#include "guest.h"

static const unsigned char ptx_80[] = {
#embed "histogram.sm_80.ptx"
};
static const unsigned char ptx_75[] = {
#embed "histogram.sm_75.ptx"
};
static const struct variant variants[] = {{ptx_80, sizeof ptx_80}, {ptx_75, sizeof ptx_75}};

#define BINS 256

// Count with one kernel. Returns 0 or a negative code.
static int count(int64_t *kernel, const char *entry, const uint8_t *data, int n, uint32_t *bins)
{
    int64_t device_bins;
    TRY(load_kernel(kernel, entry, variants, 2));
    TRY(device_bins = tw_alloc(BINS * sizeof *bins));
    tw_args args;
    tw_args_clear(&args);
    tw_arg_ptr(&args, data, n);
    tw_arg_buffer(&args, device_bins, 0);
    tw_arg_u32(&args, n);
    tw_dim3 grid = {blocks_for(n, 8 * 256), 1, 1}, block = {256, 1, 1};
    TRY(tw_launch(*kernel, grid, block, 0, &args));
    TRY(tw_read(bins, device_bins, BINS * sizeof *bins));
    TRY(tw_free(device_bins));
    return 0;
}

// Count n bytes. Returns how many bins came out wrong, or a negative code.
__attribute__((export_name("run"))) int run(int n)
{
    REQUIRE_SIZE(n, 16 << 20);
    uint8_t *data = allocate(n, 1);
    uint32_t expected[BINS] = {0}, state = 8;
    for (int i = 0; i < n; i++) {
        uint32_t random = next_u32(&state);
        data[i] = (random & 0xFF) & (random >> 8); // small values are more frequent
        expected[data[i]]++;
    }

    struct verdict verdict = {0, 0.0};
    static int64_t kernels[2];
    const char *entries[] = {"histogram_global", "histogram_shared"};
    for (int i = 0; i < 2; i++) {
        uint32_t bins[BINS] = {0};
        int code = count(&kernels[i], entries[i], data, n, bins);
        if (code < 0)
            return code;
        for (int bin = 0; bin < BINS; bin++) {
            double error = fabs((double)bins[bin] - (double)expected[bin]);
            verdict.mismatches += error != 0.0;
            verdict.max_error = fmax(verdict.max_error, error);
        }
    }
    int mismatches = conclude(verdict, "histogram: %d bytes in %d bins, global and shared", n, BINS);
    free(data);
    return mismatches;
}

int main(int argc, char **argv)
{
    return run(problem_size(argc, argv, 65536)) != 0;
}
