// What is not there is not opened, and its making needs its folder.
#include "check.h"

int main(void) {
    __wasi_fd_t fd;
    EXPECT(IS(NOENT), open_at(FS, "none", 0, READ, 0, &fd));
    EXPECT(IS(NOENT), open_at(FS, "none", FOLDER, READ, 0, &fd));
    EXPECT(IS(NOENT), open_at(FS, "none", TRUNCATE, BOTH, 0, &fd));
    EXPECT(IS(NOENT), open_at(FS, "none/x", CREATE, BOTH, 0, &fd));
    EXPECT(IS(NOENT), CALL(path_create_directory)(FS, "none/x"));
    return wrong;
}
