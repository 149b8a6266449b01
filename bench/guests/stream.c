// What the benchmark of streams calls: chunks that say when they were emitted.
#include <stdint.h>

#include "tensorwasm.h"

[[clang::import_module("wasi_snapshot_preview1"), clang::import_name("clock_time_get")]]
int32_t clock_time_get(int32_t clock, int64_t precision, uint64_t *time);

// Emit the time since 1970 in nanoseconds, as 8 bytes, little-endian. Then wait for a moment, as a guest that goes on does.
[[clang::export_name("stamp")]] int32_t stamp(uint32_t wait_us)
{
    uint64_t first = 0, now = 0;
    if (clock_time_get(0, 1, &first)) return -1;
    const int32_t code = tw_emit_chunk(&first, sizeof first);
    do {
        if (clock_time_get(0, 1, &now)) return -1;
    } while (now - first < (uint64_t)wait_us * 1000);
    return code;
}
