// What is no terminal says so.
#include "check.h"
#include <errno.h>
#include <unistd.h>

int main(void) {
    for (int fd = 0; fd < 3; fd++) {
        errno = 0;
        EXPECT(0, isatty(fd));
        EXPECT(ENOTTY, errno);
    }
    EXPECT(0, isatty(77));
    EXPECT(EBADF, errno);
    return wrong;
}
