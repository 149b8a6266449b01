// Nothing is below a file.
#include "check.h"

int main(void) {
    __wasi_fd_t fd, other;
    EXPECT(0, open_at(FS, "file", 0, READ, 0, &fd));
    EXPECT(IS(NOTDIR), open_at((int)fd, "x", CREATE, BOTH, 0, &other));
    EXPECT(IS(BADF), open_at(1, "x", 0, READ, 0, &other));
    EXPECT(IS(NOTDIR), open_at(FS, "file", FOLDER, READ, 0, &other));
    EXPECT(IS(BADF), open_at(99, "x", 0, READ, 0, &other));
    return wrong;
}
