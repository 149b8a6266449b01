// What the benchmark of neighbours calls: guests that want as much as they get of output, memory and time.
#include <stdint.h>

#include "tensorwasm.h"

#define CHUNK_BYTES 65536
#define PAGE_BYTES 65536
#define MIB 1048576

struct region { const void *start; uint32_t length; };

[[clang::import_module("wasi_snapshot_preview1"), clang::import_name("fd_write")]]
int32_t fd_write(int32_t file, const struct region *regions, uint32_t count, uint32_t *written);

static uint8_t chunk[CHUNK_BYTES];
static uint8_t kept[16 * MIB];

// Send so many MiB that are no text. Answers the chunks.
[[clang::export_name("emit")]] int32_t emit(uint32_t mib)
{
    for (uint32_t at = 0; at < CHUNK_BYTES; ++at) chunk[at] = (uint8_t)(at * 2654435761u >> 24);
    int32_t sent = 0;
    for (uint32_t left = mib * (MIB / CHUNK_BYTES); left > 0; --left) sent += tw_emit_chunk(chunk, CHUNK_BYTES) == 0;
    return sent;
}

// Write so many lines of 64 bytes to standard output. Answers how many were taken.
[[clang::export_name("print")]] int32_t print(uint32_t lines)
{
    for (uint32_t at = 0; at < 64; ++at) chunk[at] = (uint8_t)('a' + at % 26);
    chunk[63] = '\n';
    const struct region line = {chunk, 64};
    uint32_t written = 0, taken = 0;
    while (taken < lines && fd_write(1, &line, 1, &written) == 0) ++taken;
    return (int32_t)taken;
}

// Grow until the limit, and write to every page. Answers the pages.
[[clang::export_name("grow")]] int32_t grow(void)
{
    while ((int32_t)__builtin_wasm_memory_grow(0, 16) >= 0) continue;
    while ((int32_t)__builtin_wasm_memory_grow(0, 1) >= 0) continue;
    const uint32_t pages = __builtin_wasm_memory_size(0);
    for (uint64_t at = (uintptr_t)kept; at < (uint64_t)pages * PAGE_BYTES; at += 4096)
        *(volatile uint8_t *)(uintptr_t)at = 1;
    return (int32_t)pages;
}

// Grow until the limit, and fill what that gave with one instruction. Answers the pages.
[[clang::export_name("fill")]] int32_t fill(void)
{
    const uint32_t before = __builtin_wasm_memory_size(0);
    while ((int32_t)__builtin_wasm_memory_grow(0, 16) >= 0) continue;
    const uint32_t pages = __builtin_wasm_memory_size(0);
    __builtin_memset((void *)((uintptr_t)before * PAGE_BYTES), 7, (pages - before) * (uint32_t)PAGE_BYTES);
    return (int32_t)pages;
}

// Change every page of 16 MiB that stay. Answers the value.
[[clang::export_name("change")]] int32_t change(int32_t value)
{
    uint32_t state = (uint32_t)value * 2654435761u + 1;
    for (uint32_t at = 0; at < sizeof kept; at += 64) kept[at] = (uint8_t)((state = state * 1664525u + 1013904223u) >> 24);
    return value;
}

// Count the calls in memory that stays. Answers how many there were.
[[clang::export_name("count")]] int32_t count(void)
{
    static int32_t calls;
    return ++calls;
}
