// What the benchmarks of dispatch and memory run: loops over single functions of the ABI, timed by the guest itself.
// No C library, so that nothing is imported but what is measured and a clock. Every export answers nanoseconds for the
// whole loop, or a negative code.
#include "tensorwasm.h"

#define CLOCK_MONOTONIC 1
__attribute__((import_module("wasi_snapshot_preview1"), import_name("clock_time_get"))) extern int32_t
clock_time_get(int32_t id, int64_t precision, int64_t *time);

static const unsigned char ptx[] = {
#embed "../../examples/vector_add/vector_add.sm_80.ptx"
};

#define TRY(call)             \
    do {                      \
        int64_t code_ = (call); \
        if (code_ < 0)        \
            return code_;     \
    } while (0)

static int64_t kernel;
static tw_args args;

static int64_t now(void)
{
    int64_t time = 0;
    clock_time_get(CLOCK_MONOTONIC, 1, &time);
    return time;
}

// Zeroed memory at the end of linear memory, never given back; 0 if there is none.
static unsigned char *claim(uint32_t bytes)
{
    uint32_t pages = (bytes + 65535) / 65536;
    uint32_t first = __builtin_wasm_memory_grow(0, pages);
    return first == UINT32_MAX ? 0 : (unsigned char *)(first * 65536);
}

static int64_t prepare(void)
{
    kernel = wasi_cuda_load_ptx(ptx, sizeof ptx, "vector_add", 10);
    return kernel;
}

// Three device buffers for n elements each, as the kernel's arguments.
static int64_t use_buffers(uint32_t n)
{
    TRY(prepare());
    tw_args_clear(&args);
    for (int i = 0; i < 3; i++) {
        int64_t handle = tw_alloc((uint64_t)n * 4);
        TRY(handle);
        tw_arg_buffer(&args, handle, 0);
    }
    tw_arg_u32(&args, n);
    return 0;
}

// The same as windows of linear memory, every byte touched.
static int64_t use_windows(uint32_t n)
{
    TRY(prepare());
    unsigned char *memory = claim(n * 12);
    if (!memory)
        return TW_ERROR_QUOTA_EXCEEDED;
    for (uint32_t i = 0; i < n * 12; i += 4096)
        memory[i] = 1;
    tw_args_clear(&args);
    for (uint32_t i = 0; i < 3; i++)
        tw_arg_ptr(&args, memory + i * n * 4, n * 4);
    tw_arg_u32(&args, n);
    return 0;
}

static inline int64_t start(uint32_t blocks)
{
    return wasi_cuda_launch_async(kernel, blocks, 1, 1, 256, 1, 1, 0, args.bytes, args.len, 0);
}

static int64_t time_launches(uint32_t blocks, int32_t count, int each, int drained)
{
    for (int32_t i = 0; i < 100 && i < count; i++)
        TRY(start(blocks));
    TRY(wasi_cuda_sync());
    int64_t begin = now();
    for (int32_t i = 0; i < count; i++) {
        TRY(start(blocks));
        if (each)
            TRY(wasi_cuda_sync());
    }
    if (drained)
        TRY(wasi_cuda_sync());
    int64_t end = now();
    TRY(wasi_cuda_sync());
    return end - begin;
}

#define EXPORT(name) __attribute__((export_name(name)))

EXPORT("submit") int64_t submit(int32_t count)
{
    TRY(use_buffers(65536));
    return time_launches(256, count, 0, 0);
}

EXPORT("launch_sync") int64_t launch_sync(int32_t count)
{
    TRY(use_buffers(65536));
    return time_launches(256, count, 1, 0);
}

// A graph of `launches`, replayed `count` times, to completion.
EXPORT("replay") int64_t replay(int32_t launches, int32_t count)
{
    TRY(use_buffers(65536));
    TRY(wasi_cuda_graph_begin(0));
    for (int32_t i = 0; i < launches; i++)
        TRY(start(256));
    int64_t graph = wasi_cuda_graph_end(0);
    TRY(graph);
    TRY(wasi_cuda_graph_launch(graph, 0));
    TRY(wasi_cuda_sync());
    int64_t begin = now();
    for (int32_t i = 0; i < count; i++)
        TRY(wasi_cuda_graph_launch(graph, 0));
    TRY(wasi_cuda_sync());
    return now() - begin;
}

// A streaming kernel over n elements, in device buffers or in linear memory.
EXPORT("stream_buffers") int64_t stream_buffers(uint32_t n, int32_t count)
{
    TRY(use_buffers(n));
    return time_launches((n + 255) / 256, count, 1, 0);
}

EXPORT("stream_windows") int64_t stream_windows(uint32_t n, int32_t count)
{
    TRY(use_windows(n));
    return time_launches((n + 255) / 256, count, 1, 0);
}

// One synchronous launch over windows of n elements in a memory that no launch has used, then `count` more. Answers the
// time of the first, or of the others.
EXPORT("first_window") int64_t first_window(uint32_t n, int32_t count)
{
    TRY(use_windows(n));
    tw_dim3 grid = {(n + 255) / 256, 1, 1}, block = {256, 1, 1};
    int64_t begin = now();
    TRY(tw_launch(kernel, grid, block, 0, &args));
    int64_t end = now();
    if (count == 0)
        return end - begin;
    begin = now();
    for (int32_t i = 0; i < count; i++)
        TRY(tw_launch(kernel, grid, block, 0, &args));
    return now() - begin;
}

static int64_t time_copies(uint32_t bytes, int32_t count, int in)
{
    int64_t handle = tw_alloc(bytes);
    TRY(handle);
    unsigned char *memory = claim(bytes);
    if (!memory)
        return TW_ERROR_QUOTA_EXCEEDED;
    for (uint32_t i = 0; i < bytes; i += 4096)
        memory[i] = 1;
    TRY(tw_write(handle, memory, bytes)); // the first copy may register the memory
    TRY(tw_read(memory, handle, bytes));
    int64_t begin = now();
    for (int32_t i = 0; i < count; i++)
        TRY(in ? tw_write(handle, memory, bytes) : tw_read(memory, handle, bytes));
    return now() - begin;
}

EXPORT("copy_in") int64_t copy_in(uint32_t bytes, int32_t count)
{
    return time_copies(bytes, count, 1);
}

EXPORT("copy_out") int64_t copy_out(uint32_t bytes, int32_t count)
{
    return time_copies(bytes, count, 0);
}
