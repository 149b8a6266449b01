// Arguments arrive whole and in order.
#include "check.h"

int main(int count, char **values) {
    EXPECT(5, count);
    EXPECT(0, strcmp(values[1], "first"));
    EXPECT(0, strcmp(values[2], "second arg"));
    EXPECT(0, strcmp(values[3], ""));
    EXPECT(0, strcmp(values[4], "dritt\xc3\xa9"));
    TRUE(!values[5]);
    return wrong;
}
