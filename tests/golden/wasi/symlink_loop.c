// A link to itself ends in an error.
#include "check.h"

int main(void) {
    __wasi_fd_t fd;
    __wasi_filestat_t stat;
    EXPECT(0, CALL(path_symlink)("loop", FS, "loop"));
    EXPECT(IS(LOOP), CALL(path_open)(FS, FOLLOW, "loop", 0, READ, READ, 0, &fd));
    EXPECT(IS(LOOP), open_at(FS, "loop", 0, READ, 0, &fd));
    EXPECT(IS(LOOP), CALL(path_filestat_get)(FS, FOLLOW, "loop", &stat));
    return wrong;
}
