/* SPDX-License-Identifier: GPL-2.0 OR MIT
 *
 * A process that shares a machine with others. Run by cli/tests/it/shared.rs under `vkfd run --shared NAME`.
 *
 *   hold         takes 32 MiB of GPU memory, writes a word there, and prints the memory's name. Then it reads its
 *                commands, one a line: look (prints the word), available (prints free memory, or the errno), end.
 *   open NAME    opens the memory, prints the word and writes another.
 *   available    prints free memory.
 *   memory HOW   registers memory and has it emptied, by libc's madvise (hook) or by the system call (raw), and prints
 *                a byte of it. Then it forks, and both processes print whether they see the other's writes.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define REQUIRE(condition)                                                              \
    do {                                                                                \
        if (!(condition)) {                                                             \
            printf("FAILED: line %d: %s (errno %d)\n", __LINE__, #condition, errno);    \
            fflush(stdout);                                                             \
            _exit(1);                                                                   \
        }                                                                               \
    } while (0)

/* From kfd_ioctl.h, and from libhsakmt's copy of it. */
struct acquire_vm { uint32_t drm_fd, gpu_id; };
struct alloc { uint64_t va, size, handle, offset; uint32_t gpu_id, flags; };
struct available { uint64_t bytes; uint32_t gpu_id, pad; };
struct ipc_export { uint64_t handle; uint32_t name[4]; uint32_t gpu_id, flags; };
struct ipc_import { uint64_t handle, va, offset; uint32_t name[4]; uint32_t gpu_id, flags; };
#define ACQUIRE_VM 0x40084b15ul
#define ALLOC 0xc0284b16ul
#define AVAILABLE 0xc0104b23ul
#define IPC_IMPORT 0xc0304b80ul
#define IPC_EXPORT 0xc0204b81ul
/* VRAM or memory of the process's own, that may be written and executed; the first may be mapped. */
#define VRAM 0xe0000001u
#define USERPTR 0xc0000004u

#define GPU 0x4b01u
#define BYTES (32ul << 20)
#define PAGE 4096ul

static int kfd, render;

static void open_devices(void)
{
    kfd = open("/dev/kfd", O_RDWR | O_CLOEXEC);
    render = open("/dev/dri/renderD128", O_RDWR | O_CLOEXEC);
    REQUIRE(kfd >= 0 && render >= 0);
    struct acquire_vm vm = { (uint32_t)render, GPU };
    REQUIRE(ioctl(kfd, ACQUIRE_VM, &vm) == 0);
}

static uint64_t window(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(at != MAP_FAILED);
    return (uint64_t)(uintptr_t)at;
}

static volatile uint64_t *map(uint64_t offset, uint64_t at)
{
    void *mapped = mmap((void *)(uintptr_t)at, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, render, (off_t)offset);
    REQUIRE(mapped == (void *)(uintptr_t)at);
    return mapped;
}

static void print_available(void)
{
    struct available available = { 0, GPU, 0 };
    if (ioctl(kfd, AVAILABLE, &available) == 0)
        /* To the nearest: page tables take some as well. */
        printf("available %llu MiB\n", (unsigned long long)(available.bytes + (1 << 19)) >> 20);
    else
        printf("errno %d\n", errno);
    fflush(stdout);
}

static void hold(void)
{
    struct alloc alloc = { window(BYTES), BYTES, 0, 0, GPU, VRAM };
    REQUIRE(ioctl(kfd, ALLOC, &alloc) == 0);
    volatile uint64_t *memory = map(alloc.offset, alloc.va);
    memory[BYTES / 8 - 1] = 1234;
    struct ipc_export name = { alloc.handle, { 0 }, GPU, 0 };
    REQUIRE(ioctl(kfd, IPC_EXPORT, &name) == 0);
    /* A child that has inherited whatever there is, and outlives this process until its input ends: it must not keep anything. */
    if (fork() == 0) {
        struct pollfd input = { 0, 0, 0 };
        poll(&input, 1, -1);
        _exit(0);
    }
    printf("name %08x%08x%08x%08x\n", name.name[0], name.name[1], name.name[2], name.name[3]);
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin) != NULL && strcmp(line, "end\n") != 0) {
        if (strcmp(line, "look\n") == 0) {
            printf("word %llu\n", (unsigned long long)memory[BYTES / 8 - 1]);
            fflush(stdout);
        } else {
            print_available();
        }
    }
    printf("ended\n");
}

static void open_by(const char *text)
{
    struct ipc_import import = { 0, window(BYTES), 0, { 0 }, GPU, 0 };
    REQUIRE(sscanf(text, "%8x%8x%8x%8x", &import.name[0], &import.name[1], &import.name[2], &import.name[3]) == 4);
    if (ioctl(kfd, IPC_IMPORT, &import) != 0) {
        printf("errno %d\n", errno);
        return;
    }
    volatile uint64_t *memory = map(import.offset, import.va);
    printf("word %llu\n", (unsigned long long)memory[BYTES / 8 - 1]);
    memory[BYTES / 8 - 1] = 5678;
}

static void memory(const char *how)
{
    char *memory = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    memset(memory, 0xaa, 4 * PAGE);
    struct alloc alloc = { window(4 * PAGE), 4 * PAGE, 0, (uint64_t)(uintptr_t)memory, GPU, USERPTR };
    REQUIRE(ioctl(kfd, ALLOC, &alloc) == 0);
    REQUIRE(memory[0] == (char)0xaa && memory[4 * PAGE - 1] == (char)0xaa);
    if (strcmp(how, "hook") == 0)
        REQUIRE(madvise(memory, PAGE, MADV_DONTNEED) == 0);
    else
        REQUIRE(syscall(SYS_madvise, memory, PAGE, MADV_DONTNEED) == 0);
    printf("emptied %02x, beside %02x\n", (unsigned char)memory[0], (unsigned char)memory[PAGE]);
    fflush(stdout);
    volatile char *last = &memory[4 * PAGE - 1];
    int there[2], back[2];
    REQUIRE(pipe(there) == 0 && pipe(back) == 0);
    pid_t child = fork();
    REQUIRE(child >= 0);
    char byte = 0;
    if (child == 0) {
        REQUIRE(read(there[0], &byte, 1) == 1);
        printf("child sees %02x\n", (unsigned char)*last);
        fflush(stdout);
        *last = 0x55;
        REQUIRE(write(back[1], &byte, 1) == 1);
        _exit(0);
    }
    *last = 0x11;
    REQUIRE(write(there[1], &byte, 1) == 1 && read(back[0], &byte, 1) == 1);
    printf("parent sees %02x\n", (unsigned char)*last);
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
    REQUIRE(mprotect(memory, PAGE, PROT_READ) == 0 && mprotect(memory, PAGE, PROT_READ | PROT_WRITE) == 0);
    memory = mremap(memory, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)(uintptr_t)window(4 * PAGE));
    REQUIRE(memory != MAP_FAILED && memory[PAGE] == (char)0xaa);
    /* Registered where it is now. */
    struct alloc again = { window(4 * PAGE), 4 * PAGE, 0, (uint64_t)(uintptr_t)memory, GPU, USERPTR };
    REQUIRE(ioctl(kfd, ALLOC, &again) == 0);
    REQUIRE(memory[PAGE] == (char)0xaa);
    REQUIRE(munmap(memory, 4 * PAGE) == 0);
    printf("ended\n");
}

int main(int argc, char **argv)
{
    open_devices();
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "hold") == 0)
        hold();
    else if (strcmp(what, "open") == 0 && argc > 2)
        open_by(argv[2]);
    else if (strcmp(what, "available") == 0)
        print_available();
    else if (strcmp(what, "memory") == 0 && argc > 2)
        memory(argv[2]);
    else
        return 2;
    return 0;
}
