// An empty folder goes; one that is not, a file, and a granted folder stay.
#include "check.h"

int main(void) {
    EXPECT(IS(NOTEMPTY), CALL(path_remove_directory)(FS, "folder"));
    EXPECT(IS(NOTDIR), CALL(path_remove_directory)(FS, "file"));
    EXPECT(IS(NOENT), CALL(path_remove_directory)(FS, "none"));
    EXPECT(IS(INVAL), CALL(path_remove_directory)(FS, "."));
    EXPECT(0, CALL(path_unlink_file)(FS, "folder/inner"));
    EXPECT(0, CALL(path_remove_directory)(FS, "folder"));
    return wrong;
}
