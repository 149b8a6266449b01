// A place is moved from the start, from where it is and from the end, and not before the start.
#include "check.h"

int main(void) {
    __wasi_fd_t fd = made("seek");
    EXPECT(6, put(fd, "abcdef"));
    EXPECT(2, place(fd, 2, __WASI_WHENCE_SET));
    EXPECT(3, place(fd, 1, __WASI_WHENCE_CUR));
    EXPECT(5, place(fd, -1, __WASI_WHENCE_END));
    EXPECT(100, place(fd, 100, __WASI_WHENCE_SET));
    EXPECT(-IS(INVAL), place(fd, -1, __WASI_WHENCE_SET));
    EXPECT(-IS(INVAL), place(fd, -200, __WASI_WHENCE_CUR));
    EXPECT(100, place(fd, 0, __WASI_WHENCE_CUR));
    EXPECT(1, put(fd, "z"));
    EXPECT(101, size_of("seek"));
    return wrong;
}
