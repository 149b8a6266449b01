// Without a granted folder there is no file, by any name.
#include "check.h"
#include <errno.h>
#include <stdio.h>

int main(void) {
    const char *const names[] = {"fs/file", "file", "/etc/passwd", "../file", "."};
    for (int i = 0; i < 5; i++) {
        TRUE(!fopen(names[i], "r"));
        EXPECT(ENOENT, errno);
    }
    return wrong;
}
