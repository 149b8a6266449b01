// Standard streams are ready; a descriptor that is closed is told as such.
#include "check.h"

static __wasi_subscription_t ask(uint64_t userdata, int kind, __wasi_fd_t fd) {
    __wasi_subscription_t asked;
    memset(&asked, 0, sizeof asked);
    asked.userdata = userdata;
    asked.u.tag = (uint8_t)kind;
    asked.u.u.fd_read.file_descriptor = fd;
    return asked;
}

int main(void) {
    __wasi_event_t events[4];
    __wasi_size_t count = 0;
    __wasi_subscription_t out[] = {ask(7, __WASI_EVENTTYPE_FD_WRITE, 1), ask(8, __WASI_EVENTTYPE_FD_WRITE, 2)};
    EXPECT(0, CALL(poll_oneoff)(out, events, 2, &count));
    TRUE(count >= 1);
    for (__wasi_size_t i = 0; i < count; i++) {
        EXPECT(0, events[i].error);
        EXPECT(__WASI_EVENTTYPE_FD_WRITE, events[i].type);
        TRUE(events[i].userdata == 7 || events[i].userdata == 8);
    }
    __wasi_subscription_t in = ask(9, __WASI_EVENTTYPE_FD_READ, 0);
    EXPECT(0, CALL(poll_oneoff)(&in, events, 1, &count));
    EXPECT(1, count);
    EXPECT(9, events[0].userdata);
    EXPECT(__WASI_EVENTTYPE_FD_READ, events[0].type);
    EXPECT(IS(INVAL), CALL(poll_oneoff)(&in, events, 0, &count));
    return wrong;
}
