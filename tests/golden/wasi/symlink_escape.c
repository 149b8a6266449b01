// No link leads out of the granted folder.
#include "check.h"

int main(void) {
    __wasi_fd_t fd;
    EXPECT(0, CALL(path_symlink)("../../../../etc/passwd", FS, "out"));
    EXPECT(IS(PERM), CALL(path_open)(FS, FOLLOW, "out", 0, READ, READ, 0, &fd));
    EXPECT(0, CALL(path_symlink)("..", FS, "up"));
    EXPECT(IS(PERM), open_at(FS, "up/x", CREATE, WRITE, 0, &fd));
    EXPECT(0, CALL(path_symlink)("folder/../file", FS, "round"));
    EXPECT(0, CALL(path_open)(FS, FOLLOW, "round", 0, READ, READ, 0, &fd));
    return wrong;
}
