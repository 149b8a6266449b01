// What is there is found, what is not is named as missing.
#include "check.h"

int main(void) {
    EXPECT(__WASI_FILETYPE_REGULAR_FILE, kind_of("file"));
    EXPECT(__WASI_FILETYPE_DIRECTORY, kind_of("folder"));
    EXPECT(-IS(NOENT), kind_of("none"));
    EXPECT(-IS(NOENT), kind_of("none/none"));
    EXPECT(-IS(NOTDIR), kind_of("file/none"));
    EXPECT(-IS(PERM), kind_of(".."));
    EXPECT(__WASI_FILETYPE_DIRECTORY, kind_of("."));
    return wrong;
}
