// A file that is removed while open goes on being there for who has it open.
#include "check.h"

int main(void) {
    __wasi_fd_t fd = made("gone");
    char text[4];
    EXPECT(3, put(fd, "abc"));
    EXPECT(0, CALL(path_unlink_file)(FS, "gone"));
    EXPECT(-IS(NOENT), size_of("gone"));
    EXPECT(0, place(fd, 0, __WASI_WHENCE_SET));
    EXPECT(3, get(fd, text, sizeof text));
    EXPECT(0, CALL(fd_close)(fd));
    EXPECT(0, CALL(path_create_directory)(FS, "dir"));
    EXPECT(0, open_at(FS, "dir", FOLDER, READ, 0, &fd));
    EXPECT(0, CALL(path_remove_directory)(FS, "dir"));
    EXPECT(-IS(NOENT), size_of("dir"));
    EXPECT(0, CALL(fd_close)(fd));
    return wrong;
}
