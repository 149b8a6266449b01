// Two files differ in number, and one has the same number by path and descriptor.
#include "check.h"

int main(void) {
    __wasi_filestat_t first, second;
    __wasi_fd_t fd = made("one");
    EXPECT(0, CALL(fd_filestat_get)(fd, &first));
    EXPECT(0, CALL(path_filestat_get)(FS, 0, "one", &second));
    EXPECT(first.dev, second.dev);
    EXPECT(first.ino, second.ino);
    EXPECT(0, CALL(path_filestat_get)(FS, 0, "file", &second));
    EXPECT(first.dev, second.dev);
    TRUE(first.ino != second.ino);
    return wrong;
}
