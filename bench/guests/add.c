// What the benchmark of HTTP calls, here and in the JavaScript runtimes beside: a sum, and nothing imported.
#include <stdint.h>

[[clang::export_name("add")]] int32_t add(int32_t a, int32_t b)
{
    return (int32_t)((uint32_t)a + (uint32_t)b);
}
