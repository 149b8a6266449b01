// A file opened for reading is not written, and one for writing not read.
#include "check.h"

int main(void) {
    __wasi_fd_t fd;
    char byte;
    EXPECT(0, open_at(FS, "file", 0, READ, 0, &fd));
    EXPECT(1, get(fd, &byte, 1));
    EXPECT(-IS(BADF), put(fd, "x"));
    EXPECT(0, open_at(FS, "file", 0, WRITE, 0, &fd));
    EXPECT(-IS(BADF), get(fd, &byte, 1));
    EXPECT(1, put(fd, "x"));
    EXPECT(0, open_at(FS, "file", 0, BOTH, 0, &fd));
    EXPECT(1, get(fd, &byte, 1));
    EXPECT('x', byte);
    EXPECT(1, put(fd, "y"));
    return wrong;
}
