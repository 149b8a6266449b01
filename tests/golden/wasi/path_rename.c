// Files and folders get other names, and take the place of what may be replaced.
#include "check.h"

int main(void) {
    EXPECT(0, CALL(fd_close)(made("a")));
    EXPECT(0, CALL(path_rename)(FS, "a", FS, "b"));
    EXPECT(-IS(NOENT), size_of("a"));
    EXPECT(0, size_of("b"));
    EXPECT(0, CALL(path_rename)(FS, "b", FS, "file"));
    EXPECT(0, size_of("file"));
    EXPECT(0, CALL(path_create_directory)(FS, "empty"));
    EXPECT(0, CALL(path_rename)(FS, "folder", FS, "empty"));
    EXPECT(5, size_of("empty/inner"));
    EXPECT(0, CALL(path_create_directory)(FS, "other"));
    EXPECT(IS(NOTEMPTY), CALL(path_rename)(FS, "other", FS, "empty"));
    EXPECT(IS(NOTDIR), CALL(path_rename)(FS, "other", FS, "file"));
    EXPECT(IS(ISDIR), CALL(path_rename)(FS, "file", FS, "other"));
    EXPECT(IS(INVAL), CALL(path_rename)(FS, "other", FS, "other/below"));
    EXPECT(IS(PERM), CALL(path_rename)(FS, "file", FS, "../file"));
    EXPECT(IS(NOENT), CALL(path_rename)(FS, "none", FS, "x"));
    return wrong;
}
