// A file's bytes and data are brought to disk.
#include "check.h"

int main(void) {
    __wasi_fd_t fd = made("kept");
    EXPECT(1, put(fd, "x"));
    EXPECT(0, CALL(fd_sync)(fd));
    EXPECT(0, CALL(fd_datasync)(fd));
    EXPECT(IS(BADF), CALL(fd_sync)(99));
    return wrong;
}
