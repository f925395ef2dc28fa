/* Loaded before the C library: fails the n-th write, flush, rename, link, truncation or removal below a folder.
   Kinds: 0 no space, 1 input/output error, 2 half of a write and then an error, 3 killed on the spot,
   4 half of a write and then killed. A sticky fault makes all later writes fail as well. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int target = -1, kind = 0, sticky = 0, count = 0;
static char prefix[4096] = "";

void faults_arm(int at, int what, int stay, const char *folder) {
    target = at; kind = what; sticky = stay; count = 0;
    strncpy(prefix, folder, sizeof prefix - 1);
}
int faults_count(void) { return count; }

static int ours_path(const char *path) {
    return prefix[0] && path && strncmp(path, prefix, strlen(prefix)) == 0;
}
static int ours(int fd) {
    char link[64], path[4096];
    if (!prefix[0]) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0) return 0;
    path[n] = 0;
    return ours_path(path);
}
static int due(void) {
    int now = ++count;
    return now == target || (sticky && target > 0 && now > target);
}
static void strike(void) {
    if (kind >= 3) kill(getpid(), SIGKILL);
    errno = kind == 0 ? ENOSPC : EIO;
}

#define REAL(type, name, ...) static type (*real)(__VA_ARGS__) = 0; if (!real) real = dlsym(RTLD_NEXT, #name)

#define WRITE(name, offtype, params, args, half) \
    ssize_t name params { \
        REAL(ssize_t, name, int, const void *, size_t offtype); \
        if (ours(fd) && due()) { \
            if (kind == 2 || kind == 4) { ssize_t done = half; (void)done; } \
            strike(); \
            return -1; \
        } \
        return real args; \
    }
#define NONE
#define COMMA_OFF , off_t
WRITE(write, NONE, (int fd, const void *data, size_t n), (fd, data, n), real(fd, data, n / 2))
WRITE(pwrite, COMMA_OFF, (int fd, const void *data, size_t n, off_t at), (fd, data, n, at), real(fd, data, n / 2, at))
WRITE(pwrite64, COMMA_OFF, (int fd, const void *data, size_t n, off_t at), (fd, data, n, at), real(fd, data, n / 2, at))

#define ON_FD(name, params, types, args) \
    int name params { \
        REAL(int, name, types); \
        if (ours(fd) && due()) { strike(); return -1; } \
        return real args; \
    }
ON_FD(fsync, (int fd), int, (fd))
ON_FD(fdatasync, (int fd), int, (fd))
#define INT_OFF int, off_t
int ftruncate(int fd, off_t n) {
    REAL(int, ftruncate, int, off_t);
    if (ours(fd) && due()) { strike(); return -1; }
    return real(fd, n);
}
int ftruncate64(int fd, off_t n) {
    REAL(int, ftruncate64, int, off_t);
    if (ours(fd) && due()) { strike(); return -1; }
    return real(fd, n);
}
#define ON_PATH(name, params, args, real_params) \
    int name params { \
        static int (*real) real_params = 0; if (!real) real = dlsym(RTLD_NEXT, #name); \
        if (ours_path(to) && due()) { strike(); return -1; } \
        return real args; \
    }
ON_PATH(rename, (const char *from, const char *to), (from, to), (const char *, const char *))
ON_PATH(link, (const char *from, const char *to), (from, to), (const char *, const char *))
ON_PATH(unlink, (const char *to), (to), (const char *))
ON_PATH(renameat, (int a, const char *from, int b, const char *to), (a, from, b, to), (int, const char *, int, const char *))
ON_PATH(linkat, (int a, const char *from, int b, const char *to, int f), (a, from, b, to, f), (int, const char *, int, const char *, int))
