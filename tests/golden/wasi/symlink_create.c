// A link leads to its file, by name too, and one with an absolute target is refused.
#include "check.h"

int main(void) {
    __wasi_fd_t fd;
    char text[16];
    EXPECT(0, CALL(path_symlink)("folder/inner", FS, "link"));
    EXPECT(0, CALL(path_open)(FS, FOLLOW, "link", 0, READ, READ, 0, &fd));
    EXPECT(5, get(fd, text, sizeof text));
    EXPECT(0, CALL(path_symlink)("folder", FS, "short"));
    EXPECT(0, open_at(FS, "short/inner", 0, READ, 0, &fd));
    EXPECT(IS(EXIST), CALL(path_symlink)("file", FS, "link"));
    EXPECT(IS(PERM), CALL(path_symlink)("/etc/passwd", FS, "absolute"));
    return wrong;
}
