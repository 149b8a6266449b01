// The three standard streams: what they are, what can be done with them, and what not.
#include "check.h"

int main(void) {
    __wasi_fdstat_t stat;
    __wasi_prestat_t given;
    char byte;
    for (int fd = 0; fd < 3; fd++) EXPECT(0, CALL(fd_fdstat_get)((__wasi_fd_t)fd, &stat));
    for (int fd = 0; fd < 3; fd++) EXPECT(IS(BADF), CALL(fd_prestat_get)((__wasi_fd_t)fd, &given));
    EXPECT(0, get(0, &byte, 1));
    EXPECT(-IS(BADF), put(0, "x"));
    EXPECT(-IS(BADF), get(1, &byte, 1));
    EXPECT(-IS(SPIPE), place(1, 0, __WASI_WHENCE_CUR));
    EXPECT(0, put(2, ""));
    EXPECT(0, CALL(fd_close)(2));
    EXPECT(-IS(BADF), put(2, "x"));
    return wrong;
}
