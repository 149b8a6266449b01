// The size of a link is the length of its target; followed, it is the file's.
#include "check.h"

int main(void) {
    __wasi_filestat_t stat;
    EXPECT(0, CALL(path_symlink)("file", FS, "link"));
    EXPECT(0, CALL(path_filestat_get)(FS, 0, "link", &stat));
    EXPECT(__WASI_FILETYPE_SYMBOLIC_LINK, stat.filetype);
    EXPECT(4, stat.size);
    EXPECT(0, CALL(path_filestat_get)(FS, FOLLOW, "link", &stat));
    EXPECT(__WASI_FILETYPE_REGULAR_FILE, stat.filetype);
    EXPECT(10, stat.size);
    return wrong;
}
