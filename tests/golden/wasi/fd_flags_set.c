// A file that is set to append is written at its end, until that is unset.
#include "check.h"

int main(void) {
    __wasi_fdstat_t stat;
    __wasi_fd_t fd = made("flags");
    EXPECT(4, put(fd, "aaaa"));
    EXPECT(0, CALL(fd_fdstat_set_flags)(fd, __WASI_FDFLAGS_APPEND));
    EXPECT(0, CALL(fd_fdstat_get)(fd, &stat));
    EXPECT(__WASI_FDFLAGS_APPEND, stat.fs_flags);
    EXPECT(0, place(fd, 0, __WASI_WHENCE_SET));
    EXPECT(2, put(fd, "bb"));
    EXPECT(6, size_of("flags"));
    EXPECT(0, CALL(fd_fdstat_set_flags)(fd, 0));
    EXPECT(1, place(fd, 1, __WASI_WHENCE_SET));
    EXPECT(2, put(fd, "cc"));
    EXPECT(6, size_of("flags"));
    return wrong;
}
