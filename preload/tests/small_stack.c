/* SPDX-License-Identifier: GPL-2.0 OR MIT
 *
 * What a runtime does with a device, in a thread with a stack of the size that is said (0: the least that there is). Run by
 * cli/tests/it/circumstances.rs.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096ul
#define PIECES 2000ul

struct acquire_vm { uint32_t drm_fd, gpu_id; };
struct alloc { uint64_t va, size, handle, offset; uint32_t gpu_id, flags; };
struct map { uint64_t handle, devices; uint32_t count, done; };
struct free { uint64_t handle; };
#define ACQUIRE_VM 0x40084b15ul
#define ALLOC 0xc0284b16ul
#define FREE 0x40084b17ul
#define MAP 0xc0184b18ul
#define UNMAP 0xc0184b19ul
#define VRAM 0xf0000001u
#define USERPTR 0xf0000004u

#define REQUIRE(condition)                                                              \
    do {                                                                                \
        if (!(condition)) {                                                             \
            printf("FAILED: line %d: %s (errno %d)\n", __LINE__, #condition, errno);    \
            fflush(stdout);                                                             \
            _exit(1);                                                                   \
        }                                                                               \
    } while (0)

static uint32_t gpu;

static void *work(void *argument)
{
    (void)argument;
    int kfd = open("/dev/kfd", O_RDWR | O_CLOEXEC), render = open("/dev/dri/renderD128", O_RDWR | O_CLOEXEC);
    REQUIRE(kfd >= 0 && render >= 0);
    struct acquire_vm vm = {(uint32_t)render, gpu};
    REQUIRE(ioctl(kfd, ACQUIRE_VM, &vm) == 0);
    struct alloc vram = {.va = 0x10000000, .size = 16 * PAGE, .gpu_id = gpu, .flags = VRAM};
    REQUIRE(ioctl(kfd, ALLOC, &vram) == 0);
    char *view = mmap(NULL, vram.size, PROT_READ | PROT_WRITE, MAP_SHARED, render, (off_t)vram.offset);
    REQUIRE(view != MAP_FAILED);
    view[5] = 'a';
    /* Every other page is there, so that populating has many pieces. */
    char *memory = mmap(NULL, 2 * PIECES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    for (size_t i = 0; i < PIECES; i++)
        memory[2 * i * PAGE] = 1;
    struct alloc user = {.va = 0x20000000, .size = 2 * PIECES * PAGE, .offset = (uint64_t)memory, .gpu_id = gpu, .flags = USERPTR};
    REQUIRE(ioctl(kfd, ALLOC, &user) == 0);
    struct map map = {user.handle, (uint64_t)&gpu, 1, 0};
    REQUIRE(ioctl(kfd, MAP, &map) == 0);
    REQUIRE(mprotect(memory, PAGE, PROT_READ) == 0 && madvise(memory + PAGE, 8 * PAGE, MADV_DONTNEED) == 0);
    REQUIRE(munmap(memory + 64 * PAGE, 8 * PAGE) == 0);
    map.done = 0;
    REQUIRE(ioctl(kfd, UNMAP, &map) == 0);
    struct free give = {user.handle};
    REQUIRE(ioctl(kfd, FREE, &give) == 0);
    REQUIRE(munmap(view, vram.size) == 0 && munmap(memory, 2 * PIECES * PAGE) == 0);
    close(render);
    close(kfd);
    return memory;
}

int main(int argc, char **argv)
{
    size_t bytes = argc > 1 ? strtoull(argv[1], NULL, 0) : 0;
    FILE *file = fopen("/sys/class/kfd/kfd/topology/nodes/1/gpu_id", "r");
    REQUIRE(file && fscanf(file, "%u", &gpu) == 1);
    fclose(file);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    REQUIRE(pthread_attr_setstacksize(&attributes, bytes ? bytes : (size_t)sysconf(_SC_THREAD_STACK_MIN)) == 0);
    pthread_t thread;
    REQUIRE(pthread_create(&thread, &attributes, work, NULL) == 0 && pthread_join(thread, NULL) == 0);
    printf("done\n");
    return 0;
}
