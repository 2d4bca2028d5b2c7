/* SPDX-License-Identifier: GPL-2.0 OR MIT
 *
 * A program that has its memory locked, before it opens a GPU ("before") or after it ("after"): it
 * must not get the GPU's gigabytes into memory with that. Exits with 2 where nothing may be locked.
 * Run by cli/tests/it/locks.rs.
 */
#define _GNU_SOURCE
#include "queue.h"

/* Megabytes of this process that are in memory. */
static long resident(void)
{
    char line[256];
    long kilobytes = -1;
    FILE *status = fopen("/proc/self/status", "r");
    REQUIRE(status);
    while (fgets(line, sizeof line, status))
        sscanf(line, "VmRSS: %ld", &kilobytes);
    fclose(status);
    return kilobytes / 1024;
}

static void lock_memory(int flags)
{
    if (mlockall(flags) != 0) {
        perror("mlockall");
        _exit(2);
    }
}

int main(int count, char **arguments)
{
    REQUIRE(count == 2);
    struct queue queue;
    int before = strcmp(arguments[1], "before") == 0;
    char *own = pages(64 << 20);
    if (before)
        lock_memory(MCL_CURRENT | MCL_FUTURE);
    open_queue(&queue);
    if (!before)
        lock_memory(MCL_CURRENT | MCL_FUTURE);
    long megabytes = resident();
    /* The program's own are there. */
    unsigned char there[64 << 8];
    REQUIRE(mincore(own, 64 << 20, there) == 0);
    for (unsigned page = 0; page < sizeof there; page++)
        REQUIRE(there[page] & 1);
    char *from = pages(PAGE), *to = pages(PAGE);
    register_memory(&queue, from, PAGE);
    register_memory(&queue, to, PAGE);
    strcpy(from, "copied");
    copy(&queue, to, from, PAGE);
    finish(&queue);
    REQUIRE(strcmp(to, "copied") == 0);
    close_queue(&queue);
    printf("%ld\n", megabytes);
    return 0;
}
