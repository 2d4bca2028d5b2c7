/* SPDX-License-Identifier: GPL-2.0 OR MIT
 *
 * An SDMA queue by KFD's calls alone, for programs that have no runtime: gfx900's packets.
 */
#pragma once
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096ul
#define RING_BYTES 65536ul

#define REQUIRE(condition)                                                              \
    do {                                                                                \
        if (!(condition)) {                                                             \
            printf("FAILED: line %d: %s (errno %d)\n", __LINE__, #condition, errno);    \
            fflush(stdout);                                                             \
            _exit(1);                                                                   \
        }                                                                               \
    } while (0)

/* Of kfd_ioctl.h. */
struct aperture { uint64_t lds[2], scratch[2], gpuvm[2]; uint32_t gpu_id, pad; };
struct apertures { uint64_t list; uint32_t count, pad; };
struct acquire_vm { uint32_t drm_fd, gpu_id; };
struct alloc { uint64_t va, size, handle, offset; uint32_t gpu_id, flags; };
struct map { uint64_t handle, gpus; uint32_t count, done; };
struct create_queue {
    uint64_t ring, write_pointer, read_pointer, doorbell;
    uint32_t ring_bytes, gpu_id, type, percentage, priority, id;
    uint64_t eop, eop_bytes, save;
    uint32_t save_bytes, stack_bytes;
};
#define CREATE_QUEUE 0xc0584b02ul
#define DESTROY_QUEUE 0xc0084b03ul
#define APERTURES 0xc0104b14ul
#define ACQUIRE_VM 0x40084b15ul
#define ALLOC 0xc0284b16ul
#define FREE 0x40084b17ul
#define MAP 0xc0184b18ul
#define UNMAP 0xc0184b19ul
#define SDMA 1
/* USERPTR, COHERENT, WRITABLE. */
#define USERPTR 0x84000004u

struct queue {
    int kfd, render;
    uint32_t gpu_id, id;
    uint32_t *ring;
    /* In bytes, which only grow. */
    uint64_t written;
    volatile uint64_t *read_pointer, *write_pointer, *doorbell;
};

/* Anonymous memory. */
static void *pages(uint64_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(at != MAP_FAILED);
    return at;
}

/* Registers memory at its own address on the GPU; its handle. */
static uint64_t register_memory(struct queue *queue, void *at, uint64_t bytes)
{
    struct alloc alloc = {.va = (uintptr_t)at, .size = bytes, .offset = (uintptr_t)at, .gpu_id = queue->gpu_id,
                          .flags = USERPTR};
    REQUIRE(ioctl(queue->kfd, ALLOC, &alloc) == 0);
    struct map map = {.handle = alloc.handle, .gpus = (uintptr_t)&queue->gpu_id, .count = 1};
    REQUIRE(ioctl(queue->kfd, MAP, &map) == 0);
    return alloc.handle;
}

static inline void unregister_memory(struct queue *queue, uint64_t handle)
{
    struct map unmap = {.handle = handle, .gpus = (uintptr_t)&queue->gpu_id, .count = 1};
    REQUIRE(ioctl(queue->kfd, UNMAP, &unmap) == 0);
    REQUIRE(ioctl(queue->kfd, FREE, &handle) == 0);
}

/* Opens the first GPU and makes a queue. */
static void open_queue(struct queue *queue)
{
    memset(queue, 0, sizeof *queue);
    queue->kfd = open("/dev/kfd", O_RDWR | O_CLOEXEC);
    queue->render = open("/dev/dri/renderD128", O_RDWR | O_CLOEXEC);
    REQUIRE(queue->kfd >= 0 && queue->render >= 0);
    struct aperture gpus[1];
    struct apertures apertures = {.list = (uintptr_t)gpus, .count = 1};
    REQUIRE(ioctl(queue->kfd, APERTURES, &apertures) == 0 && apertures.count > 0);
    queue->gpu_id = gpus[0].gpu_id;
    struct acquire_vm vm = {.drm_fd = (uint32_t)queue->render, .gpu_id = queue->gpu_id};
    REQUIRE(ioctl(queue->kfd, ACQUIRE_VM, &vm) == 0);
    queue->ring = pages(RING_BYTES + PAGE);
    queue->read_pointer = (uint64_t *)((char *)queue->ring + RING_BYTES);
    queue->write_pointer = queue->read_pointer + 1;
    register_memory(queue, queue->ring, RING_BYTES + PAGE);
    struct create_queue create = {
        .ring = (uintptr_t)queue->ring, .ring_bytes = RING_BYTES, .gpu_id = queue->gpu_id, .type = SDMA,
        .read_pointer = (uintptr_t)queue->read_pointer, .write_pointer = (uintptr_t)queue->write_pointer,
        .percentage = 100, .priority = 7};
    REQUIRE(ioctl(queue->kfd, CREATE_QUEUE, &create) == 0);
    queue->id = create.id;
    char *doorbells = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, queue->kfd, (off_t)(create.doorbell & ~(PAGE - 1)));
    REQUIRE(doorbells != MAP_FAILED);
    queue->doorbell = (uint64_t *)(doorbells + (create.doorbell & (PAGE - 1)));
}

/* Submits a copy of up to 4 MiB. */
static void copy(struct queue *queue, void *to, const void *from, uint32_t bytes)
{
    uint32_t packet[7] = {1, bytes - 1, 0, (uint32_t)(uintptr_t)from, (uint32_t)((uintptr_t)from >> 32),
                          (uint32_t)(uintptr_t)to, (uint32_t)((uintptr_t)to >> 32)};
    for (int n = 0; n < 7; n++, queue->written += 4)
        queue->ring[queue->written % RING_BYTES / 4] = packet[n];
    *queue->write_pointer = queue->written;
    *queue->doorbell = queue->written;
}

/* Waits until all that was submitted is done. */
static void finish(struct queue *queue)
{
    while (*queue->read_pointer % RING_BYTES != queue->written % RING_BYTES)
        usleep(50);
}

static void close_queue(struct queue *queue)
{
    uint32_t destroy[2] = {queue->id, 0};
    REQUIRE(ioctl(queue->kfd, DESTROY_QUEUE, destroy) == 0);
    close(queue->render);
    close(queue->kfd);
}
