// A link is read whole, or as much of it as there is room for.
#include "check.h"

int main(void) {
    uint8_t text[8];
    __wasi_size_t length;
    EXPECT(0, CALL(path_symlink)("target", FS, "link"));
    EXPECT(0, CALL(path_readlink)(FS, "link", text, sizeof text, &length));
    EXPECT(6, length);
    EXPECT(0, memcmp(text, "target", 6));
    EXPECT(0, CALL(path_readlink)(FS, "link", text, 3, &length));
    EXPECT(3, length);
    EXPECT(IS(INVAL), CALL(path_readlink)(FS, "file", text, sizeof text, &length));
    EXPECT(IS(NOENT), CALL(path_readlink)(FS, "none", text, sizeof text, &length));
    return wrong;
}
