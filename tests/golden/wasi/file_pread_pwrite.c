// Reading and writing at a place leaves the file's own place alone.
#include "check.h"

static uint8_t text[16];

int main(void) {
    __wasi_fd_t fd = made("places");
    __wasi_ciovec_t from = {(const uint8_t *)"mid", 3};
    __wasi_iovec_t to = {text, sizeof text};
    __wasi_size_t done;
    __wasi_filesize_t at;
    EXPECT(10, put(fd, "..........") );
    EXPECT(0, CALL(fd_pwrite)(fd, &from, 1, 4, &done));
    EXPECT(3, done);
    EXPECT(0, CALL(fd_tell)(fd, &at));
    EXPECT(10, at);
    EXPECT(0, CALL(fd_pread)(fd, &to, 1, 3, &done));
    EXPECT(7, done);
    EXPECT(0, memcmp(text, ".mid...", 7));
    EXPECT(0, CALL(fd_pread)(fd, &to, 1, 100, &done));
    EXPECT(0, done);
    EXPECT(0, CALL(fd_pwrite)(fd, &from, 1, 12, &done));
    EXPECT(15, size_of("places"));
    EXPECT(0, CALL(fd_pread)(fd, &to, 1, 10, &done));
    EXPECT(0, memcmp(text, "\0\0mid", 5));
    return wrong;
}
