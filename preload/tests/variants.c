/* SPDX-License-Identifier: GPL-2.0 OR MIT
 *
 * Every form in which libc offers what clients call on device files and below sysfs. Run by cli/tests/it/run.rs under `vkfd run --gpus 2`.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#define KFD "/dev/kfd"
#define RENDER "/dev/dri/renderD128"
#define NODES "/sys/class/kfd/kfd/topology/nodes"
#define PAGE 4096ul

#define REQUIRE(condition)                                                              \
    do {                                                                                \
        if (!(condition)) {                                                             \
            printf("FAILED: line %d: %s (errno %d)\n", __LINE__, #condition, errno);    \
            fflush(stdout);                                                             \
            _exit(1);                                                                   \
        }                                                                               \
    } while (0)

/* Of kfd_ioctl.h. */
struct version { uint32_t major, minor; };
struct acquire_vm { uint32_t drm_fd, gpu_id; };
struct alloc { uint64_t va, size, handle, offset; uint32_t gpu_id, flags; };
#define GET_VERSION 0x80084b01ul
#define ACQUIRE_VM 0x40084b15ul
#define ALLOC 0xc0284b16ul
#define VRAM 0xf0000001u
#define DOORBELL 0xf0000008u

extern int __open_2(const char *, int), __open64_2(const char *, int);
extern int __openat_2(int, const char *, int), __openat64_2(int, const char *, int);
extern int __xstat(int, const char *, struct stat *), __lxstat(int, const char *, struct stat *);
extern int __fxstat(int, int, struct stat *), __fxstatat(int, int, const char *, struct stat *, int);
extern int __xstat64(int, const char *, struct stat64 *), __lxstat64(int, const char *, struct stat64 *);
extern int __fxstat64(int, int, struct stat64 *), __fxstatat64(int, int, const char *, struct stat64 *, int);
extern ssize_t __readlink_chk(const char *, char *, size_t, size_t);
extern char *__realpath_chk(const char *, char *, size_t);

static int early;

/* Before main, and perhaps before the library's own constructors. */
__attribute__((constructor(101))) static void before_main(void)
{
    early = open(NODES "/1/gpu_id", O_RDONLY);
}

static int is_kfd(int fd)
{
    struct version version = {0, 0};
    return ioctl(fd, GET_VERSION, &version) == 0 && version.major == 1;
}

static int is_closed(int fd)
{
    struct version version;
    return ioctl(fd, GET_VERSION, &version) == -1 && errno == EBADF;
}

static void opening(void)
{
    int fds[] = {open(KFD, O_RDWR | O_CLOEXEC), open64(KFD, O_RDWR), openat(AT_FDCWD, KFD, O_RDWR),
                 openat64(AT_FDCWD, KFD, O_RDWR), __open_2(KFD, O_RDWR), __open64_2(KFD, O_RDWR),
                 __openat_2(AT_FDCWD, KFD, O_RDWR), __openat64_2(AT_FDCWD, KFD, O_RDWR), open("//dev/./kfd", O_RDWR)};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++) {
        REQUIRE(fds[i] >= 0 && is_kfd(fds[i]));
        int flags = fcntl(fds[i], F_GETFD);
        REQUIRE((flags & FD_CLOEXEC) == (i == 0 ? FD_CLOEXEC : 0));
    }
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++) {
        REQUIRE(close(fds[i]) == 0);
        REQUIRE(is_closed(fds[i]));
    }
    REQUIRE(open(KFD, O_RDONLY | O_DIRECTORY) == -1 && errno == ENOTDIR);
    REQUIRE(open("/dev/dri/renderD130", O_RDWR) == -1 && errno == ENOENT);
    REQUIRE(open("/dev/kfd0", O_RDWR) == -1 && errno == ENOENT);
    const char *volatile nothing = NULL;
    REQUIRE(open(nothing, O_RDONLY) == -1 && errno == EFAULT);
    REQUIRE(early >= 0 && close(early) == 0);
}

static void reading(void)
{
    char text[PATH_MAX], *line = NULL;
    size_t room = 0;
    FILE *files[] = {fopen(NODES "/1/properties", "r"), fopen64(NODES "/1/properties", "re")};
    for (int i = 0; i < 2; i++) {
        REQUIRE(files[i] && getline(&line, &room, files[i]) > 0 && !strcmp(line, "cpu_cores_count 0\n"));
        fclose(files[i]);
    }
    int entries = 0;
    DIR *nodes = opendir(NODES);
    REQUIRE(nodes);
    for (struct dirent *entry; (entry = readdir(nodes));)
        entries += entry->d_name[0] != '.';
    REQUIRE(entries == 3);
    int below = openat(dirfd(nodes), "1/gpu_id", O_RDONLY);
    REQUIRE(below >= 0 && read(below, text, sizeof text) > 0);
    close(below);
    closedir(nodes);
    struct dirent **list;
    REQUIRE(scandir(NODES, &list, NULL, alphasort) == 5);
    struct dirent64 **list64;
    REQUIRE(scandir64(NODES, &list64, NULL, alphasort64) == 5);

    REQUIRE(access(KFD, R_OK | W_OK) == 0 && faccessat(AT_FDCWD, RENDER, R_OK, 0) == 0);
    REQUIRE(euidaccess(KFD, R_OK) == 0 && eaccess(KFD, R_OK) == 0);
    REQUIRE(access("/sys/module/amdgpu/initstate", R_OK) == 0);
    REQUIRE(access("/dev/dri/renderD129", R_OK) == 0 && access("/dev/dri/renderD130", R_OK) == -1);

    const char *shown = "/sys/devices/virtual/kfd/kfd/topology";
    REQUIRE(realpath("/sys/class/kfd/kfd/topology", text) == text && !strcmp(text, shown));
    REQUIRE(__realpath_chk("/sys/class/kfd/kfd/topology", text, sizeof text) && !strcmp(text, shown));
    char *own = realpath("/sys/class/kfd/kfd/topology", NULL);
    REQUIRE(own && !strcmp(own, shown));
    free(own);
    own = canonicalize_file_name("/sys/class//kfd/kfd/topology");
    REQUIRE(own && !strcmp(own, shown));
    free(own);
    REQUIRE(realpath("/etc/../etc", text) && !strcmp(text, "/etc"));
    ssize_t length = readlink("/sys/class/kfd/kfd", text, sizeof text);
    REQUIRE(length > 0 && !strncmp(text, "../../devices/virtual/kfd/kfd", (size_t)length));
    REQUIRE(readlinkat(AT_FDCWD, "/sys/class/kfd/kfd", text, sizeof text) == length);
    REQUIRE(__readlink_chk("/sys/class/kfd/kfd", text, sizeof text, sizeof text) == length);
    length = readlink("/sys/dev/char/226:128/device/subsystem", text, sizeof text);
    REQUIRE(length > 4 && !strncmp(text + length - 4, "/pci", 4));
    int fd = open(RENDER, O_RDWR);
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = readlink(link, text, sizeof text);
    REQUIRE(length == (ssize_t)strlen(RENDER) && !strncmp(text, RENDER, (size_t)length));
    close(fd);
}

static void is_render(const struct stat *status)
{
    REQUIRE(S_ISCHR(status->st_mode) && status->st_rdev == makedev(226, 128));
}

static void statuses(void)
{
    struct stat s;
    int fd = open(RENDER, O_RDWR);
    REQUIRE(fd >= 0);
#define STATUS(call)                 \
    do {                             \
        memset(&s, 0, sizeof s);     \
        REQUIRE((call) == 0);        \
        is_render(&s);               \
    } while (0)
#define STATUS64(name, ...) STATUS(name(__VA_ARGS__, (struct stat64 *)&s))
    STATUS(stat(RENDER, &s));
    STATUS(lstat(RENDER, &s));
    STATUS(fstat(fd, &s));
    STATUS(fstatat(AT_FDCWD, RENDER, &s, 0));
    STATUS(fstatat(fd, "", &s, AT_EMPTY_PATH));
    STATUS64(stat64, RENDER);
    STATUS64(lstat64, RENDER);
    STATUS64(fstat64, fd);
    STATUS(fstatat64(AT_FDCWD, RENDER, (struct stat64 *)&s, 0));
    STATUS(__xstat(1, RENDER, &s));
    STATUS(__lxstat(1, RENDER, &s));
    STATUS(__fxstat(1, fd, &s));
    STATUS(__fxstatat(1, AT_FDCWD, RENDER, &s, 0));
    STATUS64(__xstat64, 1, RENDER);
    STATUS64(__lxstat64, 1, RENDER);
    STATUS64(__fxstat64, 1, fd);
    STATUS(__fxstatat64(1, AT_FDCWD, RENDER, (struct stat64 *)&s, 0));
    struct statx x;
    REQUIRE(statx(AT_FDCWD, RENDER, 0, STATX_BASIC_STATS, &x) == 0);
    REQUIRE(S_ISCHR(x.stx_mode) && x.stx_rdev_major == 226 && x.stx_rdev_minor == 128);
    REQUIRE(statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &x) == 0 && x.stx_rdev_minor == 128);
    REQUIRE(stat("/etc/passwd", &s) == 0 && S_ISREG(s.st_mode));
    REQUIRE(stat(KFD, &s) == 0 && S_ISCHR(s.st_mode) && major(s.st_rdev) != 226);
    close(fd);
}

static void duplicates(void)
{
    int fd = open(KFD, O_RDWR);
    int spare = open("/dev/null", O_RDONLY);
    int copies[] = {dup(fd), dup2(fd, 100), dup3(fd, 101, O_CLOEXEC), fcntl(fd, F_DUPFD, 102), fcntl(fd, F_DUPFD_CLOEXEC, 103),
                    fcntl64(fd, F_DUPFD, 104)};
    REQUIRE(close(fd) == 0 && is_closed(fd));
    for (size_t i = 0; i < sizeof copies / sizeof *copies; i++)
        REQUIRE(copies[i] >= 0 && is_kfd(copies[i]));
    /* Another file takes a duplicate's place, and a device an ordinary file's. */
    REQUIRE(dup2(spare, copies[0]) == copies[0] && !is_kfd(copies[0]) && errno == ENOTTY);
    REQUIRE(dup2(copies[1], spare) == spare && is_kfd(spare));
    REQUIRE(dup2(copies[1], copies[1]) == copies[1] && is_kfd(copies[1]));
    REQUIRE(dup2(-1, copies[1]) == -1 && errno == EBADF && is_kfd(copies[1]));
    close(spare);
    REQUIRE(close_range(101, 102, 0) == 0 && is_closed(101) && is_closed(102) && is_kfd(103));
    closefrom(100);
    REQUIRE(is_closed(103) && is_closed(104) && is_closed(100));
    close(copies[0]);
}

#define REFUSED(call, code) REQUIRE((errno = 0, (call) == -1) && errno == (code))

/* What the kernel would say of memory that is not there: programs probe pointers that way. */
static void pointers(void)
{
    char *page = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), link[64], *last;
    REQUIRE(page != MAP_FAILED && munmap(page + PAGE, PAGE) == 0);
    memset(page, 'a', PAGE);
    memcpy(page + PAGE - 8, "/dev/kfd", 8);
    last = page + PAGE - 1;
    *last = '/';
    const char *bad[] = {(char *)8, (char *)-1, page + PAGE - 8, last};
    struct stat s;
    struct statx x;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *volatile path = bad[i];
        int code = EFAULT;
        REFUSED(open(path, O_RDONLY), code);
        REFUSED(openat(AT_FDCWD, path, O_RDONLY), code);
        REFUSED(access(path, R_OK), code);
        REFUSED(faccessat(AT_FDCWD, path, R_OK, 0), code);
        REFUSED(stat(path, &s), code);
        REFUSED(lstat(path, &s), code);
        REFUSED(fstatat(AT_FDCWD, path, &s, AT_EMPTY_PATH), code);
        REFUSED(statx(AT_FDCWD, path, 0, STATX_BASIC_STATS, &x), code);
        REFUSED(readlink(path, link, sizeof link), code);
        REFUSED(getxattr(path, "user.none", link, sizeof link), code);
        REQUIRE(fopen(path, "r") == NULL && errno == code);
        REFUSED(execve(path, (char *[]){"x", NULL}, (char *[]){NULL}), code);
        REFUSED(execve("/bin/true", (char *[]){"x", NULL}, (char **)path), code);
        REFUSED(execve("/bin/true", (char *[]){"x", NULL}, (char *[]){(char *)path, NULL}), code);
    }
    /* Where an answer is to be written. */
    struct stat *volatile nowhere = (struct stat *)8;
    REFUSED(stat(RENDER, nowhere), EFAULT);
    REFUSED(statx(AT_FDCWD, RENDER, 0, STATX_BASIC_STATS, (struct statx *)nowhere), EFAULT);
    int fd = open(RENDER, O_RDWR);
    REQUIRE(fd >= 0);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    REFUSED(readlink(link, (char *)nowhere, 64), EFAULT);
    close(fd);
    munmap(page, PAGE);
}

/* Files whose text is made when they are opened, in each way. */
static void usages(void)
{
    const char *path = "/sys/class/drm/card0/device/mem_info_gtt_total";
    FILE *streams[] = {fopen(path, "r"), fopen64(path, "re")};
    long long numbers[2] = {0, 0};
    for (int i = 0; i < 2; i++)
        REQUIRE(streams[i] && fscanf(streams[i], "%lld", &numbers[i]) == 1 && fclose(streams[i]) == 0);
    REQUIRE(numbers[0] > 0 && numbers[0] == numbers[1]);
    int files[] = {open(path, O_RDONLY), open64(path, O_RDONLY | O_CLOEXEC), openat(AT_FDCWD, path, O_RDONLY),
                   __open_2(path, O_RDONLY)};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char text[32] = "";
        REQUIRE(files[i] >= 0 && read(files[i], text, sizeof text - 1) > 1 && atoll(text) == numbers[0]);
        REQUIRE(!(fcntl(files[i], F_GETFD) & FD_CLOEXEC) == (i != 1));
        close(files[i]);
    }
}

/* As libudev walks: one name at a time, from directories of the system. */
static void walks(void)
{
    int devices = open("/sys/bus/pci/devices", O_RDONLY | O_DIRECTORY);
    struct stat s;
    char text[512];
    REQUIRE(devices >= 0 && fstatat(devices, "0000:03:00.0", &s, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(s.st_mode));
    REQUIRE(readlinkat(devices, "0000:03:00.0", text, sizeof text) == (ssize_t)strlen("../../../devices/vkfd/0000:03:00.0"));
    int slot = openat(devices, "0000:03:00.0", O_RDONLY | O_DIRECTORY), vendor = openat(slot, "vendor", O_RDONLY);
    REQUIRE(slot >= 0 && read(vendor, text, sizeof text) == 7 && !strncmp(text, "0x1002\n", 7));
    /* What others call so is theirs. */
    char own[] = "/tmp/vkfd-variants-XXXXXX";
    REQUIRE(mkdtemp(own));
    int there = open(own, O_RDONLY | O_DIRECTORY);
    REQUIRE(openat(there, "kfd", O_RDWR) == -1 && errno == ENOENT && openat(there, "0000:03:00.0", O_RDONLY) == -1);
    close(there);
    close(vendor);
    close(slot);
    close(devices);
    rmdir(own);
}

/* The primary node is the same device under another number. */
static void cards(void)
{
    struct stat s;
    int card = open("/dev/dri/card0", O_RDWR), kfd = open(KFD, O_RDWR);
    REQUIRE(card >= 0 && fstat(card, &s) == 0 && S_ISCHR(s.st_mode) && s.st_rdev == makedev(226, 0));
    REQUIRE(open("/dev/dri/card2", O_RDWR) == -1 && errno == ENOENT);
    char text[PATH_MAX];
    REQUIRE(realpath("/sys/class/drm/card1/device", text) && realpath("/sys/class/drm/renderD129/device", text + 1024));
    REQUIRE(!strcmp(text, text + 1024));
    REQUIRE(realpath("/sys/dev/char/226:1", text) && !strcmp(strrchr(text, '/'), "/card1"));
    REQUIRE(access("/sys/class/drm/card0/device/vendor", R_OK) == 0 && access("/sys/class/drm/card0/device/drm/card0", R_OK) == 0);
    close(card);
    close(kfd);
}

/* KFD's file has neither bytes nor a position. */
static void transfers(void)
{
    int kfd = open(KFD, O_RDWR), render = open(RENDER, O_RDWR | O_NONBLOCK), file = open("/dev/zero", O_RDWR);
    char bytes[16] = "abc";
    struct iovec list = {bytes, sizeof bytes};
    off_t at = 0;
    for (int i = 0; i < 2; i++) {
        int fd = i ? render : kfd, reading = i ? EAGAIN : EINVAL;
        REFUSED(read(fd, bytes, 4), reading);
        REFUSED(pread(fd, bytes, 4, 0), reading);
        REFUSED(pread64(fd, bytes, 4, 1ll << 43), reading);
        REFUSED(readv(fd, &list, 1), reading);
        REFUSED(preadv(fd, &list, 1, 0), reading);
        REFUSED(write(fd, bytes, 4), EINVAL);
        REFUSED(pwrite(fd, bytes, 4, 0), EINVAL);
        REFUSED(pwrite64(fd, bytes, 4, 1ll << 43), EINVAL);
        REFUSED(writev(fd, &list, 1), EINVAL);
        REFUSED(pwritev(fd, &list, 1, 0), EINVAL);
        REFUSED(lseek(fd, 0, SEEK_END), ESPIPE);
        REFUSED(lseek64(fd, 1, SEEK_SET), ESPIPE);
        REFUSED(sendfile(fd, file, &at, 4), EINVAL);
        REFUSED(sendfile(file, fd, &at, 4), EINVAL);
        REFUSED(copy_file_range(fd, &at, file, NULL, 4, 0), EINVAL);
        REFUSED(ftruncate(fd, 0), EINVAL);
        REFUSED(fallocate(fd, 0, 0, 4096), ENODEV);
        REQUIRE(posix_fallocate(fd, 0, 4096) == ENODEV);
    }
    /* Others' are as they were. */
    REQUIRE(read(file, bytes, 4) == 4 && pread(file, bytes, 4, 0) == 4 && write(file, bytes, 4) == 4 && lseek(file, 0, SEEK_CUR) >= 0);
    REFUSED(getxattr(KFD, "user.none", bytes, sizeof bytes), ENODATA);
    REFUSED(lgetxattr(NODES "/1/gpu_id", "user.none", bytes, sizeof bytes), ENODATA);
    REQUIRE(listxattr(RENDER, bytes, 0) >= 0 && llistxattr(KFD, bytes, 0) >= 0);
    close(file);
    close(render);
    close(kfd);
}

static uint32_t first_gpu(void)
{
    char text[32] = "";
    FILE *file = fopen(NODES "/1/gpu_id", "r");
    REQUIRE(file && fgets(text, sizeof text, file));
    fclose(file);
    return (uint32_t)strtoul(text, NULL, 10);
}

static void mapping(void)
{
    int kfd = open(KFD, O_RDWR), render = open(RENDER, O_RDWR), other = open("/dev/dri/renderD129", O_RDWR);
    uint32_t gpu = first_gpu();
    struct acquire_vm wrong = {(uint32_t)other, gpu}, right = {(uint32_t)render, gpu};
    REQUIRE(ioctl(kfd, ACQUIRE_VM, &wrong) == -1 && errno == EINVAL);
    REQUIRE(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, render, 0) == MAP_FAILED && errno == EINVAL);
    REQUIRE(ioctl(kfd, ACQUIRE_VM, &right) == 0);
    struct alloc vram = {.va = 0x10000000, .size = 16 * PAGE, .gpu_id = gpu, .flags = VRAM};
    REQUIRE(ioctl(kfd, ALLOC, &vram) == 0);
    /* Through libc in both its names, and past it. */
    char *views[3] = {
        mmap(NULL, vram.size, PROT_READ | PROT_WRITE, MAP_SHARED, render, (off_t)vram.offset),
        mmap64(NULL, vram.size, PROT_READ | PROT_WRITE, MAP_SHARED, render, (off64_t)vram.offset),
        (char *)syscall(SYS_mmap, NULL, vram.size, PROT_READ | PROT_WRITE, MAP_SHARED, render, vram.offset),
    };
    for (int i = 0; i < 3; i++) {
        REQUIRE(views[i] != MAP_FAILED);
        views[i][PAGE * (size_t)i + 5] = (char)('a' + i);
    }
    for (int i = 0; i < 3; i++)
        REQUIRE(views[i][5] == 'a' && views[i][PAGE + 5] == 'b' && views[i][2 * PAGE + 5] == 'c');
    char *fixed = mmap(views[1], vram.size, PROT_READ, MAP_SHARED | MAP_FIXED, render, (off_t)vram.offset);
    REQUIRE(fixed == views[1] && fixed[5] == 'a');
    REQUIRE(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, render, (off_t)vram.offset) == MAP_FAILED && errno == EINVAL);
    REQUIRE(mmap(NULL, 32 * PAGE, PROT_READ, MAP_SHARED, render, (off_t)vram.offset) == MAP_FAILED && errno == EINVAL);
    struct alloc doorbells = {.va = 0x20000000, .size = 2 * PAGE, .gpu_id = gpu, .flags = DOORBELL};
    REQUIRE(ioctl(kfd, ALLOC, &doorbells) == 0);
    REQUIRE(doorbells.offset < 1ull << 46);
    volatile uint64_t *bells = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, kfd, (off_t)doorbells.offset);
    volatile uint64_t *raw =
        (uint64_t *)syscall(SYS_mmap, NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, kfd, doorbells.offset);
    REQUIRE(bells != MAP_FAILED && raw != MAP_FAILED);
    bells[1023] = 77;
    REQUIRE(raw[1023] == 77);
    for (int i = 0; i < 3; i++)
        REQUIRE(munmap(views[i], vram.size) == 0);
    close(other);
    close(render);
    close(kfd);
}

static void children(const char *self)
{
    int fd = open(KFD, O_RDWR), status;
    pid_t child = fork();
    if (child == 0) {
        REQUIRE(is_closed(fd));
        /* It has a machine of its own, and what it was given of its parent's stays refused. */
        int own = open(KFD, O_RDWR);
        REQUIRE(own >= 0 && is_kfd(own) && is_closed(fd));
        /* Its number may be another file's, which is nobody's device. */
        close(fd);
        REQUIRE(is_kfd(own));
        close(own);
        mapping();
        /* So has its own child. */
        pid_t grandchild = fork();
        if (grandchild == 0) {
            mapping();
            _exit(0);
        }
        REQUIRE(waitpid(grandchild, &status, 0) == grandchild && status == 0);
        int next = open("/dev/null", O_RDONLY);
        REQUIRE(next == fd && !is_kfd(next) && errno == ENOTTY);
        /* What it executes has a machine of its own. */
        execl(self, self, "exec", (char *)NULL);
        _exit(2);
    }
    REQUIRE(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    REQUIRE(is_kfd(fd));
    child = vfork();
    if (child == 0) {
        if (open(KFD, O_RDWR) != -1 || errno != ENODEV)
            _exit(1);
        close(fd);
        dup2(0, fd);
        _exit(0);
    }
    REQUIRE(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 0);
    REQUIRE(is_kfd(fd));
    close(fd);
}

static sigjmp_buf back;
static volatile int faults;

static void on_fault(int signal)
{
    (void)signal;
    faults++;
    siglongjmp(back, 1);
}

/* A program's own handlers get its own faults, and no faults of the driver. */
static void signals(void)
{
    int fd = open(KFD, O_RDWR);
    struct sigaction action = {.sa_handler = on_fault}, old;
    sigemptyset(&action.sa_mask);
    REQUIRE(sigaction(SIGSEGV, &action, NULL) == 0);
    REQUIRE(ioctl(fd, GET_VERSION, (void *)16) == -1 && errno == EFAULT && faults == 0);
    if (sigsetjmp(back, 1) == 0)
        *(volatile char *)16 = 1;
    REQUIRE(faults == 1);
    REQUIRE(sigaction(SIGSEGV, NULL, &old) == 0 && old.sa_handler == on_fault);
    REQUIRE(signal(SIGSEGV, SIG_DFL) == on_fault);
    REQUIRE(signal(SIGBUS, on_fault) != SIG_ERR && signal(SIGBUS, SIG_DFL) == on_fault);
    REQUIRE(ioctl(fd, GET_VERSION, (void *)16) == -1 && errno == EFAULT);
    close(fd);
}

static void *hammer(void *argument)
{
    (void)argument;
    for (int i = 0; i < 300; i++) {
        int fd = open(KFD, O_RDWR | O_CLOEXEC), copy = dup(fd);
        REQUIRE(fd >= 0 && copy >= 0 && is_kfd(fd));
        close(fd);
        REQUIRE(is_kfd(copy));
        close(copy);
        int null = open("/dev/null", O_RDONLY);
        REQUIRE(null >= 0 && !is_kfd(null));
        close(null);
    }
    return NULL;
}

static void threads(void)
{
    pthread_t all[4];
    for (int i = 0; i < 4; i++)
        REQUIRE(pthread_create(&all[i], NULL, hammer, NULL) == 0);
    for (int i = 0; i < 4; i++)
        pthread_join(all[i], NULL);
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "exec")) {
        int fd = open(KFD, O_RDWR);
        REQUIRE(fd >= 0 && is_kfd(fd));
        return 0;
    }
    opening();
    reading();
    statuses();
    duplicates();
    transfers();
    pointers();
    cards();
    usages();
    walks();
    mapping();
    children(argv[0]);
    signals();
    threads();
    printf("every variant works\n");
    return 0;
}
