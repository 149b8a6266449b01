// Records a hundred launches once and replays all of them in one call, three times: y = alpha * x + y, over and over. What
// a launch costs the program is paid a hundred times, however often the graph runs.
#include "guest.h"

static const unsigned char ptx_80[] = {
#embed "../saxpy/saxpy.sm_80.ptx"
};
static const unsigned char ptx_75[] = {
#embed "../saxpy/saxpy.sm_75.ptx"
};
static const struct variant variants[] = {{ptx_80, sizeof ptx_80}, {ptx_75, sizeof ptx_75}};

#define ALPHA 0.125f
#define LAUNCHES 100
#define REPLAYS 3

// Update n elements 300 times. Returns how many came out wrong, or a negative code.
__attribute__((export_name("run"))) int run(int n)
{
    REQUIRE_SIZE(n, 1 << 20);
    size_t bytes = n * sizeof(float);
    float *x = allocate(n, sizeof *x), *y = allocate(n, sizeof *y), *expected = allocate(n, sizeof *expected);
    fill_floats(x, n, 5);
    fill_floats(y, n, 6);
    for (int i = 0; i < n; i++) {
        float product = ALPHA * x[i]; // rounded, as the kernel does
        expected[i] = y[i];
        for (int k = 0; k < LAUNCHES * REPLAYS; k++)
            expected[i] += product;
    }

    static int64_t kernel;
    int64_t device_x, stream, graph;
    TRY(load_kernel(&kernel, "saxpy", variants, 2));
    TRY(device_x = tw_alloc(bytes));
    TRY(tw_write(device_x, x, bytes));
    tw_args args;
    tw_args_clear(&args);
    tw_arg_f32(&args, ALPHA);
    tw_arg_buffer(&args, device_x, 0);
    tw_arg_ptr(&args, y, bytes);
    tw_arg_u32(&args, n);
    tw_dim3 grid = {blocks_for(n, 4 * 128), 1, 1}, block = {128, 1, 1};

    TRY(stream = wasi_cuda_stream_create());
    TRY(wasi_cuda_graph_begin(stream));
    for (int k = 0; k < LAUNCHES; k++)
        TRY(tw_launch_async(kernel, grid, block, 0, &args, stream));
    TRY(graph = wasi_cuda_graph_end(stream));
    for (int k = 0; k < REPLAYS; k++)
        TRY(wasi_cuda_graph_launch(graph, stream));
    TRY(wasi_cuda_stream_sync(stream)); // from here on y is ours again

    TRY(wasi_cuda_graph_destroy(graph));
    TRY(wasi_cuda_stream_destroy(stream));
    TRY(tw_free(device_x));
    int mismatches = conclude(compare_floats(y, expected, n, 0.0), "graph: %d elements, %d launches, %d times", n,
                              LAUNCHES, REPLAYS);
    free(x), free(y), free(expected);
    return mismatches;
}

int main(int argc, char **argv)
{
    return run(problem_size(argc, argv, 4096)) != 0;
}
