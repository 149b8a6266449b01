// The C library opens, reads, makes and adds to files of a granted folder.
#include "check.h"
#include <stdio.h>

int main(void) {
    char text[16] = "";
    FILE *file = fopen("fs/file", "r");
    TRUE(file);
    EXPECT(10, fread(text, 1, sizeof text, file));
    EXPECT(0, memcmp(text, "0123456789", 10));
    EXPECT(0, fclose(file));
    TRUE(file = fopen("fs/new", "w"));
    TRUE(fputs("line\n", file) >= 0);
    EXPECT(0, fclose(file));
    TRUE(file = fopen("fs/new", "a"));
    TRUE(fputs("more\n", file) >= 0);
    EXPECT(0, fclose(file));
    EXPECT(10, size_of("new"));
    return wrong;
}
