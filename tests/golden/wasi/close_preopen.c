// A granted folder can be closed, and is then gone.
#include "check.h"

int main(void) {
    __wasi_prestat_t given;
    __wasi_fd_t fd;
    EXPECT(0, CALL(fd_prestat_get)(FS, &given));
    EXPECT(__WASI_PREOPENTYPE_DIR, given.tag);
    EXPECT(2, given.u.dir.pr_name_len);
    uint8_t name[2];
    EXPECT(0, CALL(fd_prestat_dir_name)(FS, name, 2));
    EXPECT(0, memcmp(name, "fs", 2));
    EXPECT(IS(NAMETOOLONG), CALL(fd_prestat_dir_name)(FS, name, 1));
    EXPECT(IS(BADF), CALL(fd_prestat_get)(FS + 1, &given));
    EXPECT(0, CALL(fd_close)(FS));
    EXPECT(IS(BADF), CALL(fd_close)(FS));
    EXPECT(IS(BADF), CALL(fd_prestat_get)(FS, &given));
    EXPECT(IS(BADF), open_at(FS, "file", 0, READ, 0, &fd));
    return wrong;
}
