// Variables arrive, one with an equals sign and one with nothing; there are no others.
#include "check.h"
#include <stdlib.h>

int main(void) {
    __wasi_size_t count, bytes;
    EXPECT(0, CALL(environ_sizes_get)(&count, &bytes));
    EXPECT(3, count);
    EXPECT(sizeof "NAME=value" + sizeof "EQUALS=a=b" + sizeof "EMPTY=", bytes);
    EXPECT(0, strcmp(getenv("NAME"), "value"));
    EXPECT(0, strcmp(getenv("EQUALS"), "a=b"));
    EXPECT(0, strcmp(getenv("EMPTY"), ""));
    TRUE(!getenv("PATH"));
    return wrong;
}
