/* SPDX-License-Identifier: GPL-2.0 OR MIT
 *
 * A library whose constructor uses a GPU: opens it, copies by a queue, and closes everything. It
 * runs inside dlopen, with the loader's lock held. Without LIBRARY it is the program that loads it.
 * Run by cli/tests/it/locks.rs.
 */
#define _GNU_SOURCE
#ifdef LIBRARY
#include "queue.h"

__attribute__((constructor)) static void use(void)
{
    struct queue queue;
    open_queue(&queue);
    char *from = pages(PAGE), *to = pages(PAGE);
    register_memory(&queue, from, PAGE);
    register_memory(&queue, to, PAGE);
    strcpy(from, "copied inside dlopen");
    copy(&queue, to, from, PAGE);
    finish(&queue);
    puts(to);
    fflush(stdout);
    close_queue(&queue);
}
#else
#include <dlfcn.h>
#include <stdio.h>

int main(int count, char **arguments)
{
    void *library = count == 2 ? dlopen(arguments[1], RTLD_NOW) : NULL;
    puts(library ? "loaded" : dlerror());
    return !library;
}
#endif
