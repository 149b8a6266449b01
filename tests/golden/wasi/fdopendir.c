// The C library reads a folder, and finds files by what it reads.
#include "check.h"
#include <dirent.h>
#include <fcntl.h>

int main(void) {
    DIR *folder = opendir("fs");
    TRUE(folder);
    int files = 0, folders = 0;
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        files += entry->d_type == DT_REG;
        folders += entry->d_type == DT_DIR && entry->d_name[0] != '.';
    }
    EXPECT(1, files);
    EXPECT(1, folders);
    EXPECT(0, closedir(folder));
    TRUE(!opendir("fs/file"));
    TRUE(!opendir("elsewhere"));
    return wrong;
}
