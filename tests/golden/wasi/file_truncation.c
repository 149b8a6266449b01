// A file is cut when it is opened so, and by its size; growing fills with zeros.
#include "check.h"

int main(void) {
    __wasi_fd_t fd = made("cut");
    char text[8] = "xxxxxxx";
    EXPECT(6, put(fd, "abcdef"));
    EXPECT(0, CALL(fd_filestat_set_size)(fd, 2));
    EXPECT(2, size_of("cut"));
    EXPECT(0, CALL(fd_filestat_set_size)(fd, 4));
    EXPECT(0, place(fd, 0, __WASI_WHENCE_SET));
    EXPECT(4, get(fd, text, sizeof text));
    EXPECT(0, memcmp(text, "ab\0\0", 4));
    EXPECT(0, open_at(FS, "cut", TRUNCATE, BOTH, 0, &fd));
    EXPECT(0, size_of("cut"));
    return wrong;
}
