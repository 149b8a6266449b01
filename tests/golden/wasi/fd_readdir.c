// A folder lists itself, what is above it, and all that is in it; with cookies, from where it stopped.
#include "check.h"

static uint8_t list[4096];

static int count(__wasi_size_t used, uint64_t *second) {
    int found = 0;
    for (size_t at = 0; at + sizeof(__wasi_dirent_t) <= used; found++) {
        __wasi_dirent_t entry;
        memcpy(&entry, list + at, sizeof entry);
        if (found == 1) *second = entry.d_next;
        at += sizeof entry + entry.d_namlen;
        if (at > used) break;
    }
    return found;
}

int main(void) {
    __wasi_size_t used;
    uint64_t cookie = 0, unused;
    __wasi_fd_t fd;
    for (int i = 0; i < 5; i++) {
        char name[] = "folder/x0";
        name[8] = (char)('0' + i);
        EXPECT(0, CALL(fd_close)(made(name)));
    }
    EXPECT(0, open_at(FS, "folder", FOLDER, READ, 0, &fd));
    EXPECT(0, CALL(fd_readdir)(fd, list, sizeof list, 0, &used));
    TRUE(used < sizeof list);
    EXPECT(8, count(used, &cookie));
    EXPECT(0, CALL(fd_readdir)(fd, list, sizeof list, cookie, &used));
    EXPECT(6, count(used, &unused));
    EXPECT(0, CALL(fd_readdir)(fd, list, 30, 0, &used));
    EXPECT(30, used);
    EXPECT(0, CALL(fd_readdir)(fd, list, sizeof list, 8, &used));
    EXPECT(0, used);
    EXPECT(0, open_at(FS, "file", 0, READ, 0, &fd));
    EXPECT(IS(BADF), CALL(fd_readdir)(fd, list, sizeof list, 0, &used));
    return wrong;
}
