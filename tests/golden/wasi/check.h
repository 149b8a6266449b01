// What every program here uses: a wrong answer is told with its line, and makes the exit code 1.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <wasi/api.h>

#define CALL(name) __wasi_##name
#define IS(name) __WASI_ERRNO_##name
#define READ __WASI_RIGHTS_FD_READ
#define WRITE __WASI_RIGHTS_FD_WRITE
#define BOTH (READ | WRITE)
#define CREATE __WASI_OFLAGS_CREAT
#define FOLDER __WASI_OFLAGS_DIRECTORY
#define EXCLUSIVE __WASI_OFLAGS_EXCL
#define TRUNCATE __WASI_OFLAGS_TRUNC
#define FOLLOW __WASI_LOOKUPFLAGS_SYMLINK_FOLLOW
#define EXPECT(expected, found) expect(__LINE__, #found, (long long)(expected), (long long)(found))
#define TRUE(found) EXPECT(1, !!(found))

enum { FS = 3 };  // the granted folder "fs"

static int wrong;

static void say(const char *text) {
    __wasi_ciovec_t part = {(const uint8_t *)text, strlen(text)};
    __wasi_size_t written;
    (void)__wasi_fd_write(1, &part, 1, &written);
}

static void say_number(long long number) {
    char digits[24], *at = digits + sizeof digits;
    unsigned long long left = number < 0 ? -(unsigned long long)number : (unsigned long long)number;
    *--at = 0;
    do *--at = (char)('0' + left % 10);
    while (left /= 10);
    if (number < 0) *--at = '-';
    say(at);
}

static void expect(int line, const char *what, long long expected, long long found) {
    if (expected == found) return;
    wrong = 1;
    say("line ");
    say_number(line);
    say(": ");
    say(what);
    say(" is ");
    say_number(found);
    say(", not ");
    say_number(expected);
    say("\n");
}

[[maybe_unused]] static int open_at(int fd, const char *path, int how, __wasi_rights_t rights, int flags, __wasi_fd_t *opened) {
    return __wasi_path_open((__wasi_fd_t)fd, 0, path, (__wasi_oflags_t)how, rights, rights, (__wasi_fdflags_t)flags, opened);
}

[[maybe_unused]] static __wasi_fd_t made(const char *path) {
    __wasi_fd_t fd = 0;
    EXPECT(0, open_at(FS, path, CREATE | TRUNCATE, BOTH, 0, &fd));
    return fd;
}

[[maybe_unused]] static int put(__wasi_fd_t fd, const char *text) {
    __wasi_ciovec_t part = {(const uint8_t *)text, strlen(text)};
    __wasi_size_t written = 0;
    int error = __wasi_fd_write(fd, &part, 1, &written);
    return error ? -error : (int)written;
}

[[maybe_unused]] static int get(__wasi_fd_t fd, void *to, size_t length) {
    __wasi_iovec_t part = {to, length};
    __wasi_size_t got = 0;
    int error = __wasi_fd_read(fd, &part, 1, &got);
    return error ? -error : (int)got;
}

[[maybe_unused]] static long long place(__wasi_fd_t fd, long long by, int from) {
    __wasi_filesize_t at = 0;
    int error = __wasi_fd_seek(fd, by, (__wasi_whence_t)from, &at);
    return error ? -error : (long long)at;
}

[[maybe_unused]] static long long size_of(const char *path) {
    __wasi_filestat_t stat;
    int error = __wasi_path_filestat_get(FS, 0, path, &stat);
    return error ? -error : (long long)stat.size;
}

[[maybe_unused]] static int kind_of(const char *path) {
    __wasi_filestat_t stat;
    int error = __wasi_path_filestat_get(FS, 0, path, &stat);
    return error ? -error : stat.filetype;
}
