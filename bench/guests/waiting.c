// A guest that gives the device a little work and waits for it. No C library and no WASI.
#include "tensorwasm.h"

// Answers the number and one, or a negative code.
__attribute__((export_name("wait"))) int32_t wait(int32_t number)
{
    volatile int32_t kept = number;
    int64_t buffer = wasi_cuda_alloc(256, 0);
    if (buffer < 0)
        return (int32_t)buffer;
    int32_t code = wasi_cuda_sync();
    return code < 0 ? code : kept + 1;
}
