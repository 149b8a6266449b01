// Room cannot be set aside: that is refused by name and changes nothing.
#include "check.h"

int main(void) {
    __wasi_fd_t fd = made("room");
    EXPECT(IS(NOTSUP), CALL(fd_allocate)(fd, 0, 100));
    EXPECT(0, size_of("room"));
    EXPECT(IS(BADF), CALL(fd_allocate)(99, 0, 100));
    return wrong;
}
