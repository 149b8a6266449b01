// A descriptor moves to another's number, which it closes.
#include "check.h"

int main(void) {
    __wasi_fd_t first = made("first"), second = made("second");
    __wasi_filestat_t before, after;
    EXPECT(1, put(first, "1"));
    EXPECT(2, put(second, "22"));
    EXPECT(0, CALL(fd_filestat_get)(first, &before));
    EXPECT(0, CALL(fd_renumber)(first, second));
    EXPECT(0, CALL(fd_filestat_get)(second, &after));
    EXPECT(before.ino, after.ino);
    EXPECT(IS(BADF), CALL(fd_filestat_get)(first, &before));
    EXPECT(IS(BADF), CALL(fd_renumber)(first, second));
    EXPECT(IS(BADF), CALL(fd_renumber)(99, second));
    EXPECT(IS(BADF), CALL(fd_renumber)(second, 99));
    EXPECT(0, CALL(fd_renumber)(second, second));
    EXPECT(0, CALL(fd_close)(second));
    return wrong;
}
