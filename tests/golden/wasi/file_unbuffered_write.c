// What is written through one descriptor is read at once through another.
#include "check.h"

int main(void) {
    __wasi_fd_t writes = made("both"), reads;
    char byte = 0;
    EXPECT(0, open_at(FS, "both", 0, READ, 0, &reads));
    for (char next = 'a'; next < 'e'; next++) {
        char text[] = {next, 0};
        EXPECT(1, put(writes, text));
        EXPECT(1, get(reads, &byte, 1));
        EXPECT(next, byte);
    }
    EXPECT(0, get(reads, &byte, 1));
    return wrong;
}
