// The granted folder can be opened again, and is the same.
#include "check.h"

int main(void) {
    __wasi_fd_t again, file;
    __wasi_prestat_t given;
    __wasi_filestat_t first, second;
    EXPECT(0, open_at(FS, ".", FOLDER, READ, 0, &again));
    EXPECT(IS(BADF), CALL(fd_prestat_get)(again, &given));
    EXPECT(0, CALL(fd_filestat_get)(FS, &first));
    EXPECT(0, CALL(fd_filestat_get)(again, &second));
    EXPECT(first.ino, second.ino);
    EXPECT(first.dev, second.dev);
    EXPECT(0, open_at((int)again, "folder/inner", 0, READ, 0, &file));
    EXPECT(IS(PERM), open_at((int)again, "..", FOLDER, READ, 0, &file));
    return wrong;
}
