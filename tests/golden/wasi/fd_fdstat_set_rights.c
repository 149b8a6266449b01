// Rights are not kept any more: asking for what there is succeeds, or is refused by name.
#include "check.h"

int main(void) {
    __wasi_fdstat_t stat;
    __wasi_fd_t fd = made("rights");
    EXPECT(0, CALL(fd_fdstat_get)(fd, &stat));
    EXPECT(__WASI_FILETYPE_REGULAR_FILE, stat.fs_filetype);
    TRUE(stat.fs_rights_base & READ);
    TRUE(stat.fs_rights_base & WRITE);
    EXPECT(IS(BADF), CALL(fd_fdstat_set_rights)(99, 0, 0));
    return wrong;
}
