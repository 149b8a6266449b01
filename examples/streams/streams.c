// Adds two vectors piece by piece, with one stream for copies and one for kernels: while a piece is added, the next one
// is on its way to the device. Events keep them in step, and the program waits once, at the end.
#include "guest.h"

static const unsigned char ptx_80[] = {
#embed "../vector_add/vector_add.sm_80.ptx"
};
static const unsigned char ptx_75[] = {
#embed "../vector_add/vector_add.sm_75.ptx"
};
static const struct variant variants[] = {{ptx_80, sizeof ptx_80}, {ptx_75, sizeof ptx_75}};

#define PIECES 4

static int64_t kernel, copying, adding;
static int64_t device_a, device_b, device_c;

// Start adding the elements from..until on the device. Returns 0 or a negative code.
static int start_piece(const float *a, const float *b, int from, int until, int64_t copied, int64_t added)
{
    uint64_t offset = from * sizeof(float);
    uint32_t bytes = (until - from) * sizeof(float);
    TRY(wasi_cuda_memcpy_h2d_async(device_a, offset, a + from, bytes, copying));
    TRY(wasi_cuda_memcpy_h2d_async(device_b, offset, b + from, bytes, copying));
    TRY(wasi_cuda_event_record(copied, copying));

    tw_args args;
    tw_args_clear(&args);
    tw_arg_buffer(&args, device_a, offset);
    tw_arg_buffer(&args, device_b, offset);
    tw_arg_buffer(&args, device_c, offset);
    tw_arg_u32(&args, until - from);
    tw_dim3 grid = {blocks_for(until - from, 256), 1, 1}, block = {256, 1, 1};
    TRY(wasi_cuda_stream_wait_event(adding, copied));
    TRY(tw_launch_async(kernel, grid, block, 0, &args, adding));
    TRY(wasi_cuda_event_record(added, adding));
    return 0;
}

// Add n elements. Returns how many came out wrong, or a negative code.
__attribute__((export_name("run"))) int run(int n)
{
    REQUIRE_SIZE(n, 4 << 20);
    size_t bytes = n * sizeof(float);
    float *a = allocate(n, sizeof *a), *b = allocate(n, sizeof *b);
    float *c = allocate(n, sizeof *c), *expected = allocate(n, sizeof *expected);
    fill_floats(a, n, 7);
    fill_floats(b, n, 8);

    TRY(load_kernel(&kernel, "vector_add", variants, 2));
    TRY(copying = wasi_cuda_stream_create());
    TRY(adding = wasi_cuda_stream_create());
    TRY(device_a = tw_alloc(bytes));
    TRY(device_b = tw_alloc(bytes));
    TRY(device_c = tw_alloc(bytes));

    int64_t copied[PIECES], added[PIECES];
    int piece = blocks_for(n, PIECES);
    for (int k = 0; k < PIECES && k * piece < n; k++) {
        int until = (k + 1) * piece < n ? (k + 1) * piece : n;
        TRY(copied[k] = wasi_cuda_event_create());
        TRY(added[k] = wasi_cuda_event_create());
        TRY(start_piece(a, b, k * piece, until, copied[k], added[k]));
    }
    for (int k = 0; k < PIECES && k * piece < n; k++) {
        int until = (k + 1) * piece < n ? (k + 1) * piece : n;
        TRY(wasi_cuda_stream_wait_event(copying, added[k]));
        TRY(wasi_cuda_memcpy_d2h_async(c + k * piece, device_c, k * piece * sizeof *c,
                                       (until - k * piece) * sizeof *c, copying));
    }
    TRY(wasi_cuda_stream_sync(copying));

    for (int k = 0; k < PIECES && k * piece < n; k++) {
        TRY(wasi_cuda_event_destroy(copied[k]));
        TRY(wasi_cuda_event_destroy(added[k]));
    }
    TRY(wasi_cuda_stream_destroy(copying));
    TRY(wasi_cuda_stream_destroy(adding));
    TRY(tw_free(device_a));
    TRY(tw_free(device_b));
    TRY(tw_free(device_c));
    for (int i = 0; i < n; i++)
        expected[i] = a[i] + b[i];
    int mismatches = conclude(compare_floats(c, expected, n, 0.0), "streams: %d elements", n);
    free(a), free(b), free(c), free(expected);
    return mismatches;
}

int main(int argc, char **argv)
{
    return run(problem_size(argc, argv, 65536)) != 0;
}
