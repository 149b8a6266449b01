// A file goes; a folder is not unlinked.
#include "check.h"

int main(void) {
    EXPECT(IS(ISDIR), CALL(path_unlink_file)(FS, "folder"));
    EXPECT(0, CALL(path_unlink_file)(FS, "file"));
    EXPECT(IS(NOENT), CALL(path_unlink_file)(FS, "file"));
    EXPECT(IS(PERM), CALL(path_unlink_file)(FS, "../file"));
    return wrong;
}
