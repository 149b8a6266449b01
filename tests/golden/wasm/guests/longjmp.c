// setjmp and longjmp, which clang turns into exceptions of WebAssembly.

#include <setjmp.h>

// The tag that the C library throws with; its own objects only name it.
__asm__(".globl __c_longjmp\n"
        ".tagtype __c_longjmp i32\n"
        "__c_longjmp:\n");

static jmp_buf place;

static void deep(int depth) {
    if (depth == 0) {
        longjmp(place, 7);
    }
    deep(depth - 1);
}

__attribute__((export_name("jump"))) int jump(int depth) {
    int got = setjmp(place);
    if (got != 0) {
        return got;
    }
    deep(depth);
    return -1;
}
