// What the programs share: names for Wasm and for a native library, and numbers to begin with. `init` sets all that
// `run` reads, for the same sizes. Arrays are as large as the largest sizes, and not static, so that no compiler drops
// what nothing reads.
#ifdef __wasm__
#define EXPORT(name) __attribute__((export_name(#name))) name
#else
#define EXPORT(name) __attribute__((visibility("default"))) name
#endif

// Returns a number from 0 to 1, another one for each place.
static inline double sample(unsigned at, unsigned salt)
{
    return (double)((at * 2654435761u + salt * 40503u) >> 12) / 1048576.0;
}
