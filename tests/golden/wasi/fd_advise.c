// Advice is taken and changes nothing.
#include "check.h"

int main(void) {
    __wasi_fd_t fd = made("advised");
    for (int advice = 0; advice < 6; advice++) EXPECT(0, CALL(fd_advise)(fd, 0, 0, (__wasi_advice_t)advice));
    EXPECT(0, CALL(fd_advise)(fd, 10, 100, __WASI_ADVICE_WILLNEED));
    EXPECT(0, size_of("advised"));
    EXPECT(IS(BADF), CALL(fd_advise)(99, 0, 0, __WASI_ADVICE_NORMAL));
    return wrong;
}
