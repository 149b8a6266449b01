// Clocks run, and not backwards; a clock that is none is refused.
#include "check.h"

int main(void) {
    __wasi_timestamp_t before, after, each;
    EXPECT(0, CALL(clock_time_get)(__WASI_CLOCKID_MONOTONIC, 1, &before));
    EXPECT(0, CALL(clock_time_get)(__WASI_CLOCKID_MONOTONIC, 0, &after));
    TRUE(before <= after);
    EXPECT(0, CALL(clock_time_get)(__WASI_CLOCKID_REALTIME, 0, &before));
    TRUE(before > 1600000000ULL * 1000000000);
    EXPECT(0, CALL(clock_res_get)(__WASI_CLOCKID_MONOTONIC, &each));
    TRUE(each > 0 && each <= 1000000000);
    EXPECT(IS(BADF), CALL(clock_time_get)(2, 0, &before));
    EXPECT(IS(BADF), CALL(clock_res_get)(3, &each));
    return wrong;
}
