// A folder has no place to read from, and nothing to read.
#include "check.h"

int main(void) {
    __wasi_fd_t fd;
    char byte;
    EXPECT(0, CALL(path_create_directory)(FS, "dir"));
    EXPECT(0, open_at(FS, "dir", FOLDER, READ, 0, &fd));
    EXPECT(-IS(BADF), place(fd, 0, __WASI_WHENCE_CUR));
    EXPECT(-IS(BADF), get(fd, &byte, 1));
    EXPECT(-IS(BADF), put(fd, "x"));
    EXPECT(IS(ISDIR), open_at(FS, "dir", 0, WRITE, 0, &fd));
    return wrong;
}
