// A link to nothing cannot be opened, and can be removed.
#include "check.h"

int main(void) {
    __wasi_fd_t fd;
    EXPECT(0, CALL(path_symlink)("nothing", FS, "link"));
    EXPECT(IS(LOOP), open_at(FS, "link", 0, READ, 0, &fd));
    EXPECT(IS(NOENT), CALL(path_open)(FS, FOLLOW, "link", 0, READ, READ, 0, &fd));
    EXPECT(__WASI_FILETYPE_SYMBOLIC_LINK, kind_of("link"));
    EXPECT(0, CALL(path_unlink_file)(FS, "link"));
    return wrong;
}
