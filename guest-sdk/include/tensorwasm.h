// The imports of TensorWasm for guests in C and C++. Needs no C library.
// Made by tools/generate_abi.py from the tables in src/tensorwasm/guest/imports. Do not edit.
#ifndef TENSORWASM_H
#define TENSORWASM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TW_IMPORT(module, name) __attribute__((import_module(module), import_name(name))) extern

// What a function of wasi:cuda answers instead of a result.
enum {
    TW_ERROR_NOT_AVAILABLE = -1, // The guest was not granted CUDA, or this host has no device.
    TW_ERROR_INVALID_POINTER = -2, // A region is not inside the guest's memory.
    TW_ERROR_INVALID_KERNEL = -3, // No such kernel, or the PTX has no such entry.
    TW_ERROR_MALFORMED_PTX = -4, // The PTX does not parse, or asks for what the device lacks.
    TW_ERROR_LAUNCH_FAILED = -5, // A pointer argument is not the guest's or is misaligned, or the kernel broke a rule.
    TW_ERROR_QUOTA_EXCEEDED = -6, // Over a limit, or the GPU is too busy before the deadline.
    TW_ERROR_INTERNAL = -7, // An earlier failure has ended the guest's use of the GPU.
    TW_ERROR_INVALID_DIMENSIONS = -8, // The geometry is outside the limits of the ABI, the kernel or the device.
    TW_ERROR_INVALID_ARGS = -9, // A size of 0, a copy past the end of its buffer, a name that is not UTF-8, an unknown attribute, kernel arguments that are damaged or do not fit the kernel's parameters, or what is not allowed while a stream records.
    TW_ERROR_KERNEL_ARGS_UNSUPPORTED = -10, // More argument records than a launch may carry, or a parameter no record can fill.
    TW_ERROR_INVALID_HANDLE = -11, // No such device buffer, stream, event or graph.
};

// What a function of wasi:tensor answers instead of a result.
enum {
    TW_STREAM_STREAMING_OFF = -1, // No client listens to this invocation's stream.
    TW_STREAM_REFUSED = -2, // The region is not inside the guest's memory, or the chunk is over a limit.
    TW_STREAM_CLIENT_GONE = -3, // The client that listened has gone.
};

// What tw_yield advises.
enum {
    TW_YIELD_CONTINUE = 0, // Go on.
    TW_YIELD_DEADLINE_NEAR = 1, // Come to an end.
    TW_YIELD_STOP = 2, // Stop.
};

// What wasi_cuda_device_attribute can be asked.
enum {
    TW_DEVICE_KIND = 1, // 0 for the emulator, 1 for CUDA.
    TW_DEVICE_COMPUTE_CAPABILITY_MAJOR = 2, // The 9 of sm_90.
    TW_DEVICE_COMPUTE_CAPABILITY_MINOR = 3, // The 0 of sm_90.
    TW_DEVICE_PTX_ISA_MAJOR = 4, // Of the newest PTX that the device takes, the 8 of 8.4.
    TW_DEVICE_PTX_ISA_MINOR = 5, // Likewise, the 4 of 8.4.
    TW_DEVICE_MULTIPROCESSORS = 6, // How many there are.
    TW_DEVICE_MEMORY_BYTES = 7, // Bytes of device memory, other guests' included.
    TW_DEVICE_MAX_SHARED_BYTES_PER_BLOCK = 8, // Bytes of shared memory that a block can have, static and dynamic.
    TW_DEVICE_MAX_THREADS_PER_BLOCK = 9, // Threads that a block can have.
    TW_DEVICE_WARP_SIZE = 10, // Threads of a warp.
    TW_DEVICE_CONCURRENT_MANAGED_ACCESS = 11, // 1 if CPU and GPU may touch managed memory at once, else 0.
};

// The first byte of an argument record.
enum {
    TW_ARG_I32 = 0x01, // a signed integer
    TW_ARG_I64 = 0x02, // a signed integer
    TW_ARG_F32 = 0x03, // an IEEE 754 single
    TW_ARG_F64 = 0x04, // an IEEE 754 double
    TW_ARG_U32 = 0x05, // an unsigned integer
    TW_ARG_U64 = 0x06, // an unsigned integer
    TW_ARG_PTR = 0x07, // a window of the guest's memory: u32 offset, u32 length in bytes
    TW_ARG_BUFFER = 0x08, // a place in a device buffer: u64 handle, u64 offset in bytes
};

// Limits.
#define TW_MAX_PTX_BYTES UINT64_C(8388608) // bytes of one PTX text
#define TW_MAX_TOTAL_PTX_BYTES UINT64_C(536870912) // bytes of all PTX texts of an instance
#define TW_MAX_KERNELS_PER_INSTANCE UINT64_C(256) // kernels of an instance
#define TW_MAX_ENTRY_NAME_BYTES UINT64_C(256) // bytes of an entry's name
#define TW_MAX_RECORDED_ERROR_BYTES UINT64_C(512) // bytes of the text of the last error
#define TW_MAX_BLOCK_DIM UINT64_C(1024) // threads of a block along an axis
#define TW_MAX_THREADS_PER_BLOCK UINT64_C(1024) // threads of a block
#define TW_MAX_GRID_DIM UINT64_C(2147483647) // blocks along an axis
#define TW_MAX_DYNAMIC_SHARED_MEM_BYTES UINT64_C(233472) // bytes of dynamic shared memory
#define TW_MAX_KERNEL_ARGS UINT64_C(128) // argument records of a launch
#define TW_MAX_KERNEL_ARGS_BYTES UINT64_C(4096) // bytes of argument records of a launch
#define TW_MAX_DEVICE_ALLOC_BYTES UINT64_C(268435456) // bytes of one device buffer
#define TW_MAX_DEVICE_ALLOCS_PER_INSTANCE UINT64_C(4096) // device buffers of an instance
#define TW_MAX_TOTAL_DEVICE_BYTES UINT64_C(4294967296) // bytes of device memory of an instance by default
#define TW_MAX_PROCESS_DEVICE_BYTES UINT64_C(68719476736) // bytes of device memory of a process
#define TW_MAX_PROCESS_DEVICE_ALLOCS UINT64_C(16384) // device buffers of a process
#define TW_MAX_CONCURRENT_GPU_OPS UINT64_C(256) // launches in flight in a process
#define TW_MAX_STREAMS_PER_INSTANCE UINT64_C(16) // streams that an instance has created
#define TW_MAX_EVENTS_PER_INSTANCE UINT64_C(256) // events of an instance
#define TW_MAX_GRAPHS_PER_INSTANCE UINT64_C(32) // graphs of an instance
#define TW_MAX_GRAPH_LAUNCHES UINT64_C(4096) // launches and copies of a graph; large ones of guarded sessions count more
#define TW_MAX_CHUNK_BYTES UINT64_C(65536) // bytes of one chunk of the stream
#define TW_MAX_TOTAL_STREAM_BYTES UINT64_C(67108864) // bytes of the stream of a call

// wasi:cuda/host@0.3.0
// CUDA kernels and device memory. Off unless the caller grants it. 0.3.0 adds streams, events, graphs and questions about the device.

// Load a kernel of a PTX text. Returns its id, which is positive.
TW_IMPORT("wasi:cuda/host@0.3.0", "wasi_cuda_load_ptx")
int64_t wasi_cuda_load_ptx(const void *ptx, uint32_t ptx_len, const char *entry,
    uint32_t entry_len);

// Run a kernel and wait for it.
TW_IMPORT("wasi:cuda/host@0.3.0", "wasi_cuda_launch")
int32_t wasi_cuda_launch(int64_t kernel, uint32_t grid_x, uint32_t grid_y, uint32_t grid_z,
    uint32_t block_x, uint32_t block_y, uint32_t block_z, uint32_t shared_mem, const void *args,
    uint32_t args_len);

// Wait for all work of this instance.
TW_IMPORT("wasi:cuda/host@0.3.0", "wasi_cuda_sync")
int32_t wasi_cuda_sync(void);

// Answer the length of the last failure's text, 0 if nothing has failed.
TW_IMPORT("wasi:cuda/host@0.3.0", "wasi_cuda_last_error_len")
int32_t wasi_cuda_last_error_len(void);

// Copy the last failure's text, UTF-8 without a NUL. Returns how many bytes were copied.
TW_IMPORT("wasi:cuda/host@0.3.0", "wasi_cuda_last_error_copy")
int32_t wasi_cuda_last_error_copy(void *dst, uint32_t dst_len);

// Allocate zeroed device memory. Returns its handle, which is positive.
TW_IMPORT("wasi:cuda/host@0.3.0", "wasi_cuda_alloc")
int64_t wasi_cuda_alloc(uint32_t size_lo, uint32_t size_hi);

// Release device memory, once the work that could reach it has ended.
TW_IMPORT("wasi:cuda/host@0.3.0", "wasi_cuda_free")
int32_t wasi_cuda_free(uint32_t handle_lo, uint32_t handle_hi);

// Copy guest memory to the start of device memory.
TW_IMPORT("wasi:cuda/host@0.3.0", "wasi_cuda_memcpy_h2d")
int32_t wasi_cuda_memcpy_h2d(uint32_t handle_lo, uint32_t handle_hi, const void *src, uint32_t len);

// Copy the start of device memory to guest memory.
TW_IMPORT("wasi:cuda/host@0.3.0", "wasi_cuda_memcpy_d2h")
int32_t wasi_cuda_memcpy_d2h(void *dst, uint32_t handle_lo, uint32_t handle_hi, uint32_t len);

// Start a kernel behind what the stream was given so far.
TW_IMPORT("wasi:cuda/host@0.3.0", "wasi_cuda_launch_async")
int32_t wasi_cuda_launch_async(int64_t kernel, uint32_t grid_x, uint32_t grid_y, uint32_t grid_z,
    uint32_t block_x, uint32_t block_y, uint32_t block_z, uint32_t shared_mem, const void *args,
    uint32_t args_len, int64_t stream);

// Release a kernel, once the work that could use it has ended.
TW_IMPORT("wasi:cuda/host@0.3.0", "wasi_cuda_unload")
int32_t wasi_cuda_unload(int64_t kernel);

// Start copying guest memory to a place in device memory.
TW_IMPORT("wasi:cuda/host@0.3.0", "wasi_cuda_memcpy_h2d_async")
int32_t wasi_cuda_memcpy_h2d_async(int64_t handle, uint64_t offset, const void *src, uint32_t len,
    int64_t stream);

// Start copying from a place in device memory to guest memory.
TW_IMPORT("wasi:cuda/host@0.3.0", "wasi_cuda_memcpy_d2h_async")
int32_t wasi_cuda_memcpy_d2h_async(void *dst, int64_t handle, uint64_t offset, uint32_t len,
    int64_t stream);

// Open a stream. Returns its number, which is positive.
TW_IMPORT("wasi:cuda/host@0.3.0", "wasi_cuda_stream_create")
int64_t wasi_cuda_stream_create(void);

// Wait for a stream's work and close it.
TW_IMPORT("wasi:cuda/host@0.3.0", "wasi_cuda_stream_destroy")
int32_t wasi_cuda_stream_destroy(int64_t stream);

// Wait for a stream's work.
TW_IMPORT("wasi:cuda/host@0.3.0", "wasi_cuda_stream_sync")
int32_t wasi_cuda_stream_sync(int64_t stream);

// Answer 0 if a stream's work has ended, 1 if it still runs.
TW_IMPORT("wasi:cuda/host@0.3.0", "wasi_cuda_stream_query")
int32_t wasi_cuda_stream_query(int64_t stream);

// Open an event. Returns its number, which is positive.
TW_IMPORT("wasi:cuda/host@0.3.0", "wasi_cuda_event_create")
int64_t wasi_cuda_event_create(void);

// Close an event. Streams that wait for it go on waiting for what it marked.
TW_IMPORT("wasi:cuda/host@0.3.0", "wasi_cuda_event_destroy")
int32_t wasi_cuda_event_destroy(int64_t event);

// Set an event behind what the stream was given so far.
TW_IMPORT("wasi:cuda/host@0.3.0", "wasi_cuda_event_record")
int32_t wasi_cuda_event_record(int64_t event, int64_t stream);

// Put what the stream is given next behind an event. Does not wait itself.
TW_IMPORT("wasi:cuda/host@0.3.0", "wasi_cuda_stream_wait_event")
int32_t wasi_cuda_stream_wait_event(int64_t stream, int64_t event);

// Wait for the work before an event.
TW_IMPORT("wasi:cuda/host@0.3.0", "wasi_cuda_event_sync")
int32_t wasi_cuda_event_sync(int64_t event);

// Answer 0 if the work before an event has ended, 1 if it still runs.
TW_IMPORT("wasi:cuda/host@0.3.0", "wasi_cuda_event_query")
int32_t wasi_cuda_event_query(int64_t event);

// Record what the stream is given from now on instead of running it.
TW_IMPORT("wasi:cuda/host@0.3.0", "wasi_cuda_graph_begin")
int32_t wasi_cuda_graph_begin(int64_t stream);

// End recording. Returns the graph's number, which is positive.
TW_IMPORT("wasi:cuda/host@0.3.0", "wasi_cuda_graph_end")
int64_t wasi_cuda_graph_end(int64_t stream);

// Start all that a graph holds behind what the stream was given so far.
TW_IMPORT("wasi:cuda/host@0.3.0", "wasi_cuda_graph_launch")
int32_t wasi_cuda_graph_launch(int64_t graph, int64_t stream);

// Release a graph, once its replays have ended.
TW_IMPORT("wasi:cuda/host@0.3.0", "wasi_cuda_graph_destroy")
int32_t wasi_cuda_graph_destroy(int64_t graph);

// Answer a property of the device.
TW_IMPORT("wasi:cuda/host@0.3.0", "wasi_cuda_device_attribute")
int64_t wasi_cuda_device_attribute(int32_t attribute);

// Copy the device's name, UTF-8 without a NUL. Returns how many bytes were copied.
TW_IMPORT("wasi:cuda/host@0.3.0", "wasi_cuda_device_name")
int32_t wasi_cuda_device_name(void *dst, uint32_t dst_len);

// wasi:tensor/host
// The input of a call, and a stream of output while it runs. Always there.

// Send a chunk, whole or not at all. Returns 0.
TW_IMPORT("wasi:tensor/host", "emit-chunk")
int32_t tw_emit_chunk(const void *chunk, uint32_t len);

// Push out what was sent. Returns 0.
TW_IMPORT("wasi:tensor/host", "flush")
int32_t tw_flush(void);

// Answer the length of the input, 0 if there is none.
TW_IMPORT("wasi:tensor/host", "input-len")
uint32_t tw_input_len(void);

// Copy the start of the input, as much of it as fits. Returns how many bytes were copied. Reading
// consumes nothing.
TW_IMPORT("wasi:tensor/host", "read-input")
int32_t tw_read_input(void *dst, uint32_t len);

// wasi:scheduler/host@0.1.0
// How much time a call has left. Always there.

// Answer 0 to go on, 1 with less than 10 ms left, 2 once the deadline has passed.
TW_IMPORT("wasi:scheduler/host@0.1.0", "yield")
uint32_t tw_yield(void);

// Answer whole milliseconds left, 2^32 - 1 without a deadline.
TW_IMPORT("wasi:scheduler/host@0.1.0", "deadline-remaining-ms")
uint32_t tw_deadline_remaining_ms(void);

// Kernel arguments, in the order of the kernel's parameters:
//
//     tw_args args;
//     tw_args_clear(&args);
//     tw_arg_ptr(&args, numbers, sizeof numbers);
//     tw_arg_u32(&args, count);
//     tw_launch(kernel, (tw_dim3){blocks, 1, 1}, (tw_dim3){256, 1, 1}, 0, &args);
//
// A builder that overflows launches nothing: tw_launch answers TW_ERROR_KERNEL_ARGS_UNSUPPORTED.
typedef struct {
    uint32_t len;
    uint32_t overflow;
    uint8_t bytes[TW_MAX_KERNEL_ARGS_BYTES];
} tw_args;

typedef struct {
    uint32_t x, y, z;
} tw_dim3;

static inline void tw_args_clear(tw_args *args)
{
    args->len = 0;
    args->overflow = 0;
}

static inline void tw_args_put(tw_args *args, uint64_t value, uint32_t bytes)
{
    if (args->overflow || bytes > TW_MAX_KERNEL_ARGS_BYTES - args->len) {
        args->overflow = 1;
        return;
    }
    for (uint32_t i = 0; i < bytes; i++)
        args->bytes[args->len++] = (uint8_t)(value >> (8 * i));
}

static inline void tw_arg_i32(tw_args *args, int32_t value)
{
    tw_args_put(args, TW_ARG_I32, 1);
    tw_args_put(args, (uint32_t)value, 4);
}

static inline void tw_arg_i64(tw_args *args, int64_t value)
{
    tw_args_put(args, TW_ARG_I64, 1);
    tw_args_put(args, (uint64_t)value, 8);
}

static inline void tw_arg_u32(tw_args *args, uint32_t value)
{
    tw_args_put(args, TW_ARG_U32, 1);
    tw_args_put(args, value, 4);
}

static inline void tw_arg_u64(tw_args *args, uint64_t value)
{
    tw_args_put(args, TW_ARG_U64, 1);
    tw_args_put(args, value, 8);
}

static inline void tw_arg_f32(tw_args *args, float value)
{
    union {
        float number;
        uint32_t bits;
    } both;
    both.number = value;
    tw_args_put(args, TW_ARG_F32, 1);
    tw_args_put(args, both.bits, 4);
}

static inline void tw_arg_f64(tw_args *args, double value)
{
    union {
        double number;
        uint64_t bits;
    } both;
    both.number = value;
    tw_args_put(args, TW_ARG_F64, 1);
    tw_args_put(args, both.bits, 8);
}

// A window of this program's memory.
static inline void tw_arg_ptr(tw_args *args, const void *start, uint32_t bytes)
{
    tw_args_put(args, TW_ARG_PTR, 1);
    tw_args_put(args, (uint32_t)(uintptr_t)start, 4);
    tw_args_put(args, bytes, 4);
}

// A place in device memory.
static inline void tw_arg_buffer(tw_args *args, int64_t handle, uint64_t offset)
{
    tw_args_put(args, TW_ARG_BUFFER, 1);
    tw_args_put(args, (uint64_t)handle, 8);
    tw_args_put(args, offset, 8);
}

static inline int32_t tw_launch(int64_t kernel, tw_dim3 grid, tw_dim3 block, uint32_t shared_mem, const tw_args *args)
{
    if (args->overflow)
        return TW_ERROR_KERNEL_ARGS_UNSUPPORTED;
    return wasi_cuda_launch(kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared_mem, args->bytes,
                            args->len);
}

// The same, but it only starts the kernel. The memory of its windows is the device's until the stream has drained.
static inline int32_t tw_launch_async(int64_t kernel, tw_dim3 grid, tw_dim3 block, uint32_t shared_mem,
                                      const tw_args *args, int64_t stream)
{
    if (args->overflow)
        return TW_ERROR_KERNEL_ARGS_UNSUPPORTED;
    return wasi_cuda_launch_async(kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared_mem, args->bytes,
                                  args->len, stream);
}

// Device memory by its whole handle and size.
static inline int64_t tw_alloc(uint64_t bytes)
{
    return wasi_cuda_alloc((uint32_t)bytes, (uint32_t)(bytes >> 32));
}

static inline int32_t tw_free(int64_t handle)
{
    return wasi_cuda_free((uint32_t)handle, (uint32_t)((uint64_t)handle >> 32));
}

static inline int32_t tw_write(int64_t handle, const void *src, uint32_t bytes)
{
    return wasi_cuda_memcpy_h2d((uint32_t)handle, (uint32_t)((uint64_t)handle >> 32), src, bytes);
}

static inline int32_t tw_read(void *dst, int64_t handle, uint32_t bytes)
{
    return wasi_cuda_memcpy_d2h(dst, (uint32_t)handle, (uint32_t)((uint64_t)handle >> 32), bytes);
}

#ifdef __cplusplus
}
#endif

#endif
