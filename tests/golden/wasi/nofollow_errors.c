// What a link leads to is not opened where links are not followed.
#include "check.h"

int main(void) {
    __wasi_fd_t fd;
    EXPECT(0, CALL(path_symlink)("folder", FS, "link"));
    EXPECT(IS(LOOP), open_at(FS, "link", 0, READ, 0, &fd));
    EXPECT(0, CALL(path_open)(FS, FOLLOW, "link", FOLDER, READ, READ, 0, &fd));
    EXPECT(0, CALL(fd_close)(fd));
    EXPECT(0, CALL(path_unlink_file)(FS, "link"));
    EXPECT(0, CALL(path_symlink)("file", FS, "link"));
    EXPECT(IS(LOOP), open_at(FS, "link", 0, READ, 0, &fd));
    EXPECT(IS(NOTDIR), CALL(path_open)(FS, FOLLOW, "link", FOLDER, READ, READ, 0, &fd));
    EXPECT(IS(NOTDIR), CALL(path_remove_directory)(FS, "link"));
    return wrong;
}
