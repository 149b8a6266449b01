// Size and times of an open file.
#include "check.h"

int main(void) {
    __wasi_filestat_t stat;
    __wasi_fd_t fd = made("dated");
    EXPECT(0, CALL(fd_filestat_set_size)(fd, 100));
    EXPECT(0, CALL(fd_filestat_get)(fd, &stat));
    EXPECT(100, stat.size);
    EXPECT(1, stat.nlink);
    EXPECT(0, CALL(fd_filestat_set_times)(fd, 0, 1000000000, __WASI_FSTFLAGS_MTIM));
    EXPECT(0, CALL(fd_filestat_get)(fd, &stat));
    EXPECT(1000000000, stat.mtim);
    EXPECT(100, stat.size);
    EXPECT(IS(INVAL), CALL(fd_filestat_set_times)(fd, 0, 0, __WASI_FSTFLAGS_MTIM | __WASI_FSTFLAGS_MTIM_NOW));
    EXPECT(IS(BADF), CALL(fd_filestat_set_size)(99, 1));
    return wrong;
}
