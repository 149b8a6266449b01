// A clock strikes, after its time and not before; the earlier one alone is told.
#include "check.h"

int main(void) {
    __wasi_subscription_t asked[2];
    __wasi_event_t events[2];
    __wasi_size_t count;
    __wasi_timestamp_t before, after;
    memset(asked, 0, sizeof asked);
    for (int i = 0; i < 2; i++) {
        asked[i].userdata = (uint64_t)i + 1;
        asked[i].u.tag = __WASI_EVENTTYPE_CLOCK;
        asked[i].u.u.clock.id = __WASI_CLOCKID_MONOTONIC;
        asked[i].u.u.clock.timeout = i ? 20000000 : 60000000000;
    }
    EXPECT(0, CALL(clock_time_get)(__WASI_CLOCKID_MONOTONIC, 1, &before));
    EXPECT(0, CALL(poll_oneoff)(asked, events, 2, &count));
    EXPECT(0, CALL(clock_time_get)(__WASI_CLOCKID_MONOTONIC, 1, &after));
    TRUE(after - before >= 20000000);
    EXPECT(1, count);
    EXPECT(2, events[0].userdata);
    EXPECT(0, events[0].error);
    EXPECT(__WASI_EVENTTYPE_CLOCK, events[0].type);
    asked[1].u.u.clock.timeout = before;
    asked[1].u.u.clock.flags = __WASI_SUBCLOCKFLAGS_SUBSCRIPTION_CLOCK_ABSTIME;
    EXPECT(0, CALL(poll_oneoff)(asked, events, 2, &count));
    EXPECT(1, count);
    return wrong;
}
