// A file by two names; a folder has one.
#include "check.h"

int main(void) {
    __wasi_filestat_t first, second;
    EXPECT(0, CALL(path_link)(FS, 0, "file", FS, "folder/again"));
    EXPECT(0, CALL(path_filestat_get)(FS, 0, "file", &first));
    EXPECT(0, CALL(path_filestat_get)(FS, 0, "folder/again", &second));
    EXPECT(first.ino, second.ino);
    EXPECT(2, second.nlink);
    EXPECT(IS(EXIST), CALL(path_link)(FS, 0, "file", FS, "folder/again"));
    EXPECT(IS(NOENT), CALL(path_link)(FS, 0, "none", FS, "x"));
    EXPECT(IS(PERM), CALL(path_link)(FS, 0, "folder", FS, "x"));
    EXPECT(IS(PERM), CALL(path_link)(FS, 0, "file", FS, "../x"));
    EXPECT(IS(INVAL), CALL(path_link)(FS, FOLLOW, "file", FS, "x"));
    return wrong;
}
