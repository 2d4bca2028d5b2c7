/* SPDX-License-Identifier: GPL-2.0 OR MIT
 *
 * A program whose threads change mappings while a GPU works: they free and trim what is registered,
 * with malloc's lock held, unmap, move and discard what is registered, and fork. Says "over" when
 * all rounds are. Run by cli/tests/it/locks.rs,
 * which has the deadline.
 */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include "queue.h"

#define BUFFER (1ul << 20)
#define BLOCK (3ul << 20)
#define ROUNDS 40

static struct queue queue;
static atomic_int over;

/* Copies without end. */
static void *work(void *unused)
{
    char *from = pages(BUFFER), *to = pages(BUFFER);
    register_memory(&queue, from, BUFFER);
    register_memory(&queue, to, BUFFER);
    for (unsigned round = 0; !over; round++) {
        memset(from, (int)round, BUFFER);
        for (int n = 0; n < 8; n++)
            copy(&queue, to, from, BUFFER);
        finish(&queue);
        REQUIRE(to[0] == (char)round && to[BUFFER - 1] == (char)round);
    }
    return unused;
}

/* malloc_trim discards the block's pages with the arena's lock held, and sleeps until the event of
 * that is read. */
static void *trim(void *unused)
{
    for (int round = 0; round < ROUNDS; round++) {
        char *block = malloc(BLOCK), *anchor = malloc(64);
        REQUIRE(block && anchor);
        memset(block, 1, BLOCK);
        char *start = (char *)(((uintptr_t)block + PAGE - 1) & ~(PAGE - 1));
        uint64_t handle = register_memory(&queue, start, BLOCK - PAGE);
        free(block);
        malloc_trim(0);
        unregister_memory(&queue, handle);
        free(anchor);
    }
    return unused;
}

/* What goes is registered, and its event has to be read before the call returns. */
static void *unmap(void *unused)
{
    for (int round = 0; round < 4 * ROUNDS; round++) {
        char *block = pages(BUFFER);
        memset(block, round, BUFFER);
        uint64_t handle = register_memory(&queue, block, BUFFER);
        REQUIRE(madvise(block, 16 * PAGE, MADV_DONTNEED) == 0);
        REQUIRE(munmap(block + 16 * PAGE, 16 * PAGE) == 0);
        char *moved = mremap(block + 32 * PAGE, 16 * PAGE, 64 * PAGE, MREMAP_MAYMOVE);
        REQUIRE(moved != MAP_FAILED && moved[0] == (char)round);
        REQUIRE(munmap(moved, 64 * PAGE) == 0);
        unregister_memory(&queue, handle);
        REQUIRE(munmap(block, BUFFER) == 0);
    }
    return unused;
}

/* fork holds all of malloc's locks. */
static void *forks(void *unused)
{
    for (int round = 0; round < ROUNDS; round++) {
        pid_t child = fork();
        if (child == 0)
            _exit(malloc(100) == NULL);
        int status;
        REQUIRE(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    }
    return unused;
}

int main(void)
{
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    open_queue(&queue);
    void *(*all[5])(void *) = {work, trim, forks, unmap, unmap};
    pthread_t threads[5];
    for (int n = 0; n < 5; n++)
        REQUIRE(pthread_create(&threads[n], NULL, all[n], NULL) == 0);
    for (int n = 1; n < 5; n++)
        REQUIRE(pthread_join(threads[n], NULL) == 0);
    over = 1;
    REQUIRE(pthread_join(threads[0], NULL) == 0);
    close_queue(&queue);
    puts("over");
    return 0;
}
