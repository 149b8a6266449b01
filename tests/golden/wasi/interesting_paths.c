// Paths that go round, out, nowhere or beyond a file.
#include "check.h"

static int opens(const char *path, size_t length) {
    extern int32_t open_raw(int32_t, int32_t, const char *, size_t, int32_t, int64_t, int64_t, int32_t, __wasi_fd_t *)
        __attribute__((import_module("wasi_snapshot_preview1"), import_name("path_open")));
    __wasi_fd_t fd;
    return open_raw(FS, 0, path, length, 0, READ, READ, 0, &fd);
}

#define OPENS(path) opens(path, sizeof path - 1)

int main(void) {
    EXPECT(0, OPENS("folder/inner"));
    EXPECT(0, OPENS("folder//inner"));
    EXPECT(0, OPENS("./folder/./inner"));
    EXPECT(0, OPENS("folder/../folder/inner"));
    EXPECT(IS(PERM), OPENS("../fs/file"));
    EXPECT(IS(PERM), OPENS("folder/../../fs/file"));
    EXPECT(IS(PERM), OPENS("/fs/file"));
    EXPECT(IS(PERM), OPENS("/etc/passwd"));
    EXPECT(IS(NOENT), OPENS(""));
    EXPECT(IS(INVAL), OPENS("file\0"));
    EXPECT(IS(INVAL), OPENS("fi\0le"));
    EXPECT(IS(NOTDIR), OPENS("file/"));
    EXPECT(IS(NOTDIR), OPENS("file/x"));
    EXPECT(IS(NOTDIR), OPENS("file/.."));
    EXPECT(IS(ILSEQ), OPENS("\xff\xfe"));
    EXPECT(0, OPENS("folder/"));
    return wrong;
}
