// A slash at the end asks for a folder.
#include "check.h"

int main(void) {
    EXPECT(0, CALL(fd_close)(made("plain")));
    EXPECT(0, CALL(path_create_directory)(FS, "dir/"));
    EXPECT(0, CALL(path_rename)(FS, "dir/", FS, "dir2/"));
    EXPECT(__WASI_FILETYPE_DIRECTORY, kind_of("dir2/"));
    EXPECT(IS(NOTDIR), CALL(path_rename)(FS, "plain/", FS, "x"));
    EXPECT(IS(NOTDIR), CALL(path_rename)(FS, "plain", FS, "x/"));
    EXPECT(IS(NOTDIR), CALL(path_unlink_file)(FS, "plain/"));
    EXPECT(IS(NOTDIR), CALL(path_remove_directory)(FS, "plain/"));
    EXPECT(-IS(NOTDIR), kind_of("plain/"));
    EXPECT(IS(NOENT), CALL(path_symlink)("file", FS, "link/"));
    EXPECT(0, CALL(path_remove_directory)(FS, "dir2"));
    EXPECT(IS(ISDIR), CALL(path_unlink_file)(FS, "folder/"));
    return wrong;
}
