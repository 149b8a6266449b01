// A file is always ready, to be read and to be written.
#include "check.h"

int main(void) {
    __wasi_subscription_t asked[2];
    __wasi_event_t events[2];
    __wasi_size_t count;
    __wasi_fd_t fd;
    EXPECT(0, open_at(FS, "file", 0, BOTH, 0, &fd));
    memset(asked, 0, sizeof asked);
    for (int i = 0; i < 2; i++) {
        asked[i].userdata = (uint64_t)(__WASI_EVENTTYPE_FD_READ + i);
        asked[i].u.tag = (uint8_t)(__WASI_EVENTTYPE_FD_READ + i);
        asked[i].u.u.fd_read.file_descriptor = fd;
    }
    EXPECT(0, CALL(poll_oneoff)(asked, events, 2, &count));
    TRUE(count >= 1);
    for (__wasi_size_t i = 0; i < count; i++) {
        EXPECT(0, events[i].error);
        EXPECT(events[i].userdata, events[i].type);
        TRUE(events[i].userdata);
    }
    return wrong;
}
