/* SPDX-License-Identifier: GPL-2.0 OR MIT
 *
 * A library for programs in other languages: a GPU that copies without end on a thread of its own,
 * and memory that is registered and unmapped. Used by workers.py.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include "queue.h"

#define BUFFER (1ul << 20)

static struct queue queue;
static pthread_t thread;
static atomic_int over;
static atomic_uint rounds;

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
        rounds++;
    }
    return unused;
}

/* Begins to copy. */
void begin(void)
{
    open_queue(&queue);
    REQUIRE(pthread_create(&thread, NULL, work, NULL) == 0);
}

/* Registers memory, and unmaps half of it while it is registered. */
void storm(void)
{
    char *block = pages(BUFFER);
    memset(block, 1, BUFFER);
    uint64_t handle = register_memory(&queue, block, BUFFER);
    REQUIRE(munmap(block, BUFFER / 2) == 0);
    unregister_memory(&queue, handle);
    REQUIRE(munmap(block + BUFFER / 2, BUFFER / 2) == 0);
}

/* Ends. How often it has copied. */
unsigned end(void)
{
    over = 1;
    REQUIRE(pthread_join(thread, NULL) == 0);
    close_queue(&queue);
    return rounds;
}
