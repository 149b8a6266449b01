// There are no sockets.
#include "check.h"

int main(void) {
    __wasi_fd_t fd;
    EXPECT(IS(BADF), CALL(sock_accept)(99, 0, &fd));
    EXPECT(IS(NOTSOCK), CALL(sock_shutdown)(1, __WASI_SDFLAGS_RD));
    return wrong;
}
