// Who may only read cannot cut a file.
#include "check.h"

int main(void) {
    __wasi_fd_t fd;
    EXPECT(0, open_at(FS, "file", 0, READ, 0, &fd));
    EXPECT(IS(INVAL), CALL(fd_filestat_set_size)(fd, 0));
    EXPECT(10, size_of("file"));
    return wrong;
}
