// A descriptor that is closed, or that never was, is told as such.
#include "check.h"

int main(void) {
    __wasi_event_t event;
    __wasi_size_t count = 0;
    EXPECT(0, CALL(fd_close)(2));
    for (int fd = 2; fd < 100; fd += 97) {
        for (int kind = __WASI_EVENTTYPE_FD_READ; kind <= __WASI_EVENTTYPE_FD_WRITE; kind++) {
            __wasi_subscription_t asked;
            memset(&asked, 0, sizeof asked);
            asked.u.tag = (uint8_t)kind;
            asked.u.u.fd_read.file_descriptor = (__wasi_fd_t)fd;
            memset(&event, 0, sizeof event);
            const int error = CALL(poll_oneoff)(&asked, &event, 1, &count);
            EXPECT(IS(BADF), error ? error : event.error);
        }
    }
    return wrong;
}
