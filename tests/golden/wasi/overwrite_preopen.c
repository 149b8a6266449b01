// Another folder can take the number of a granted one.
#include "check.h"

int main(void) {
    __wasi_fd_t fd, file;
    char text[8];
    EXPECT(0, open_at(FS, "folder", FOLDER, READ, 0, &fd));
    EXPECT(0, CALL(fd_renumber)(fd, FS));
    EXPECT(IS(BADF), CALL(fd_close)(fd));
    EXPECT(IS(NOENT), open_at(FS, "file", 0, READ, 0, &file));
    EXPECT(0, open_at(FS, "inner", 0, READ, 0, &file));
    EXPECT(5, get(file, text, sizeof text));
    return wrong;
}
