// What must be made anew is refused where it is already.
#include "check.h"

int main(void) {
    __wasi_fd_t fd;
    EXPECT(IS(EXIST), open_at(FS, "file", CREATE | EXCLUSIVE, BOTH, 0, &fd));
    EXPECT(IS(EXIST), open_at(FS, "folder", CREATE | EXCLUSIVE, BOTH, 0, &fd));
    EXPECT(0, open_at(FS, "file", CREATE, READ, 0, &fd));
    EXPECT(0, open_at(FS, "new", CREATE | EXCLUSIVE, BOTH, 0, &fd));
    EXPECT(IS(INVAL), open_at(FS, "other", CREATE | FOLDER, READ, 0, &fd));
    EXPECT(IS(EXIST), CALL(path_create_directory)(FS, "folder"));
    EXPECT(IS(EXIST), CALL(path_create_directory)(FS, "file"));
    return wrong;
}
