// What the example guests share: picking a PTX variant, checking codes, making inputs, judging results.
#ifndef EXAMPLES_GUEST_H
#define EXAMPLES_GUEST_H

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensorwasm.h"

// The PTX texts that the program carries, newest target first.
struct variant {
    const unsigned char *text;
    size_t length;
};

// Say on stderr what failed and why. Returns the code.
static inline int say_failure(const char *what, int64_t code)
{
    char text[TW_MAX_RECORDED_ERROR_BYTES + 1] = {0};
    wasi_cuda_last_error_copy(text, TW_MAX_RECORDED_ERROR_BYTES);
    fprintf(stderr, "%s: code %lld%s%s\n", what, (long long)code, *text ? ": " : "", text);
    return (int)code;
}

// Leave the function if a size is not in 1 .. most.
#define REQUIRE_SIZE(size, most)                                        \
    do {                                                                \
        if ((size) < 1 || (size) > (most)) {                            \
            fprintf(stderr, "the size must be 1 to %d\n", (int)(most)); \
            return TW_ERROR_INVALID_ARGS;                               \
        }                                                               \
    } while (0)

// Leave the function with the code if the ABI answers a negative one.
#define TRY(call)                                 \
    do {                                          \
        int64_t code_ = (call);                   \
        if (code_ < 0)                            \
            return say_failure(#call, code_);     \
    } while (0)

// Load the first variant that this device and its driver accept, unless *kernel already has its id.
// Returns the id or a negative code.
static inline int64_t load_kernel(int64_t *kernel, const char *entry, const struct variant *variants, size_t count)
{
    if (*kernel > 0)
        return *kernel;
    *kernel = TW_ERROR_MALFORMED_PTX;
    for (size_t i = 0; i < count && *kernel == TW_ERROR_MALFORMED_PTX; i++)
        *kernel = wasi_cuda_load_ptx(variants[i].text, variants[i].length, entry, strlen(entry));
    return *kernel;
}

// Zeroed memory; ends the program if there is none.
static inline void *allocate(size_t count, size_t each)
{
    void *memory = calloc(count, each);
    if (memory == NULL) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    return memory;
}

// The next of a fixed sequence of numbers (xorshift), so that every run computes the same.
static inline uint32_t next_u32(uint32_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

// Floats in -1 .. 1, spread evenly (a Weyl sequence): each from its index alone, so that several are computed at once.
static inline void fill_floats(float *floats, size_t count, uint32_t seed)
{
    for (uint32_t i = 0; i < (uint32_t)count; i++)
        floats[i] = (float)(int32_t)((i + seed * 0x10001u) * 0x9e3779b9u) / 2147483648.0f;
}

static inline uint32_t blocks_for(uint32_t items, uint32_t per_block)
{
    return (items + per_block - 1) / per_block;
}

static inline uint32_t float_bits(float number)
{
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    return bits;
}

static inline float float_of(uint32_t bits)
{
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

// How two results differ.
struct verdict {
    int mismatches;
    double max_error;
};

// Compare floats; a difference above the tolerance, or a NaN on one side, is a mismatch.
static inline struct verdict compare_floats(const float *got, const float *expected, size_t count, float tolerance)
{
    uint32_t most = float_bits(tolerance), worst = 0;
    int mismatches = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t error = float_bits(fabsf(got[i] - expected[i]));  // as integers: the order is the same, NaN is largest
        mismatches += error > most;
        worst = error > worst ? error : worst;
    }
    return (struct verdict){mismatches, float_of(worst)};
}

// Say how it went, after a subject made as printf makes it. Returns the mismatches.
__attribute__((format(printf, 2, 3))) static inline int conclude(struct verdict verdict, const char *subject, ...)
{
    va_list parts;
    va_start(parts, subject);
    vprintf(subject, parts);
    va_end(parts);
    if (verdict.mismatches == 0)
        printf(", verified, max error %g\n", verdict.max_error);
    else
        printf(", %d MISMATCHES, max error %g\n", verdict.mismatches, verdict.max_error);
    return verdict.mismatches;
}

// The problem size: the program's first argument, or what it does by itself.
static inline int problem_size(int argc, char **argv, int usual)
{
    return argc > 1 ? atoi(argv[1]) : usual;
}

#endif
