/* SPDX-License-Identifier: GPL-2.0 OR MIT
 *
 * Keeps the first GPU busy with a kernel that does not end, for tests of monitors. Run by cli/tests/it/shared.rs
 * under `vkfd run --shared NAME`. Prints a line when the kernel is submitted, and ends with its input.
 */
#define _GNU_SOURCE
#include "queue.h"

#define AQL 2
/* USERPTR, COHERENT, EXECUTABLE, WRITABLE. */
#define CODE 0xc4000004u

int main(void)
{
    struct queue queue;
    open_queue(&queue);
    /* A page each for code, descriptor and pointers, then the ring. */
    char *at = pages(3 * PAGE + RING_BYTES);
    struct alloc alloc = {.va = (uintptr_t)at, .size = 3 * PAGE + RING_BYTES, .offset = (uintptr_t)at,
                          .gpu_id = queue.gpu_id, .flags = CODE};
    /* s_sleep 1; s_branch to it. */
    uint32_t code[2] = {0xbf8e0001, 0xbf82fffe};
    memcpy(at, code, sizeof code);
    char *descriptor = at + PAGE;
    int64_t entry = -(int64_t)PAGE;
    uint32_t registers[3] = {3 | 3 << 6 | 0xf << 16 | 1 << 21 | 1 << 23, 2 << 1 | 1 << 7, 1 << 3};
    memcpy(descriptor + 16, &entry, sizeof entry);
    memcpy(descriptor + 48, registers, sizeof registers);
    volatile uint64_t *pointers = (uint64_t *)(at + 2 * PAGE);
    /* A dispatch of one work-group of 64, with fences. */
    char *packet = at + 3 * PAGE;
    uint16_t head[6] = {0x1402, 3, 64, 1, 1, 0};
    uint32_t grid[3] = {64, 1, 1};
    uint64_t object = (uintptr_t)descriptor;
    memcpy(packet, head, sizeof head);
    memcpy(packet + 12, grid, sizeof grid);
    memcpy(packet + 32, &object, sizeof object);
    REQUIRE(ioctl(queue.kfd, ALLOC, &alloc) == 0);
    struct map map = {.handle = alloc.handle, .gpus = (uintptr_t)&queue.gpu_id, .count = 1};
    REQUIRE(ioctl(queue.kfd, MAP, &map) == 0);
    struct create_queue create = {
        .ring = (uintptr_t)packet, .ring_bytes = RING_BYTES, .gpu_id = queue.gpu_id, .type = AQL,
        .read_pointer = (uintptr_t)pointers, .write_pointer = (uintptr_t)(pointers + 1), .percentage = 100,
        .priority = 7};
    REQUIRE(ioctl(queue.kfd, CREATE_QUEUE, &create) == 0);
    /* Doorbells of a process are in one page. */
    volatile uint64_t *doorbell =
        (uint64_t *)((uintptr_t)queue.doorbell / PAGE * PAGE + (create.doorbell & (PAGE - 1)));
    pointers[1] = 1;
    *doorbell = 0;
    puts("submitted");
    fflush(stdout);
    char line[16];
    while (fgets(line, sizeof line, stdin))
        ;
    return 0;
}
