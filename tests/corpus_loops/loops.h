// What the programs of the corpus share. Their arrays are not static, so that no compiler drops what nothing reads.
// N is the most that a size may be; tests take it small, benchmarks large.
#ifndef N
#define N 24
#endif
#define EXPORT(name) __attribute__((export_name(#name))) name

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef short i16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

static inline double sample(u32 at, u32 salt) { return (double)((at * 2654435761u + salt * 40503u) >> 12) / 1048576.0; }
