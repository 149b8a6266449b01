// A module of one page: a call that touches one place of it, and calls that write and read all of it. No imports.
#include <stdint.h>

#define PAGE_BYTES 65536
#define STEP_BYTES 64

static volatile int32_t *word(uint32_t at)
{
    return (volatile int32_t *)(uintptr_t)at;
}

// Answers what it has written.
__attribute__((export_name("touch"))) int32_t touch(int32_t value)
{
    *word(STEP_BYTES) = value;
    return *word(STEP_BYTES);
}

// Writes to every line of the page. Answers the page's bytes.
__attribute__((export_name("fill"))) int32_t fill(int32_t value)
{
    for (uint32_t at = STEP_BYTES; at < PAGE_BYTES; at += STEP_BYTES)
        *word(at) = value;
    return PAGE_BYTES;
}

// Answers the sum of what `fill` has written, as 32 bits.
__attribute__((export_name("sum"))) int32_t sum(void)
{
    uint32_t total = 0;
    for (uint32_t at = STEP_BYTES; at < PAGE_BYTES; at += STEP_BYTES)
        total += (uint32_t)*word(at);
    return (int32_t)total;
}
