// Reading at a place works with append; a plain write goes to the end.
#include "check.h"

int main(void) {
    __wasi_fd_t fd;
    uint8_t text[4];
    __wasi_iovec_t to = {text, sizeof text};
    __wasi_size_t done;
    EXPECT(0, open_at(FS, "file", 0, BOTH, __WASI_FDFLAGS_APPEND, &fd));
    EXPECT(1, put(fd, "X"));
    EXPECT(11, size_of("file"));
    EXPECT(0, CALL(fd_pread)(fd, &to, 1, 7, &done));
    EXPECT(4, done);
    EXPECT(0, memcmp(text, "789X", 4));
    return wrong;
}
