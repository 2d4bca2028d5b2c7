/* SPDX-License-Identifier: GPL-2.0 OR MIT
 *
 * A program that loads libraries with thread-local variables. After each one it trims its heap,
 * which the GPU has mapped: free holds malloc's lock while it waits for the event reader. A thread's
 * first access to a thread-local variable after such a load may take that lock. The arguments are
 * the libraries. With LIBRARY defined this is one of them. Run by cli/tests/it/locks.rs.
 */
#ifdef LIBRARY
static __thread char of_each_thread[64];

char *here(void)
{
    return of_each_thread;
}
#else
#define _GNU_SOURCE
#include "queue.h"
#include <dlfcn.h>
#include <malloc.h>

#define BYTES (4u << 20)

int main(int count, char **libraries)
{
    struct queue queue;
    /* Everything comes from the heap, and goes back as soon as it is free. */
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 0);
    mallopt(M_TOP_PAD, 0);
    open_queue(&queue);
    for (int n = 1; n < count; n++) {
        REQUIRE(dlopen(libraries[n], RTLD_NOW));
        char *memory = malloc(BYTES);
        REQUIRE(memory);
        memset(memory, n, BYTES);
        char *begin = (char *)(((uintptr_t)memory + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
        uint64_t handle = register_memory(&queue, begin, BYTES / 2);
        free(memory);
        unregister_memory(&queue, handle);
    }
    close_queue(&queue);
    puts("trimmed");
    return 0;
}
#endif
