// Size and times by path.
#include "check.h"

int main(void) {
    __wasi_filestat_t stat;
    EXPECT(0, CALL(path_filestat_get)(FS, 0, "file", &stat));
    EXPECT(10, stat.size);
    EXPECT(0, CALL(path_filestat_set_times)(FS, 0, "file", 0, stat.mtim - 1000000000, __WASI_FSTFLAGS_MTIM));
    __wasi_timestamp_t before = stat.mtim;
    EXPECT(0, CALL(path_filestat_get)(FS, 0, "file", &stat));
    EXPECT(before - 1000000000, stat.mtim);
    EXPECT(IS(INVAL), CALL(path_filestat_set_times)(FS, 0, "file", 0, 0, __WASI_FSTFLAGS_ATIM | __WASI_FSTFLAGS_ATIM_NOW));
    EXPECT(IS(NOENT), CALL(path_filestat_set_times)(FS, 0, "none", 0, 0, __WASI_FSTFLAGS_MTIM_NOW));
    return wrong;
}
