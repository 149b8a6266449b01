// One write gathers its parts in order.
#include "check.h"

int main(void) {
    __wasi_ciovec_t parts[] = {{(const uint8_t *)"one ", 4}, {(const uint8_t *)"", 0}, {(const uint8_t *)"two ", 4}};
    __wasi_size_t written = 0, all = 0;
    for (size_t i = 0; i < 3; i += (written >= parts[i].buf_len)) {
        EXPECT(0, CALL(fd_write)(1, parts + i, 1, &written));
        all += written;
    }
    EXPECT(8, all);
    EXPECT(6, put(1, "three\n"));
    return wrong;
}
