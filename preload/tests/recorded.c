/* SPDX-License-Identifier: GPL-2.0 OR MIT
 *
 * What a timeline shows: a copy of three pages, an eviction by a page that the program gives back,
 * and a call that fails. Run by cli/tests/it/recorded.rs and `cargo xtask browser --timeline`.
 */
#define _GNU_SOURCE
#include "queue.h"

int main(void)
{
    struct queue queue;
    open_queue(&queue);
    char *from = pages(3 * PAGE), *to = pages(3 * PAGE);
    register_memory(&queue, from, 3 * PAGE);
    register_memory(&queue, to, 3 * PAGE);
    strcpy(from, "before");
    copy(&queue, to, from, 3 * PAGE);
    finish(&queue);
    puts(to);
    REQUIRE(madvise(from, PAGE, MADV_DONTNEED) == 0);
    strcpy(from, "after");
    copy(&queue, to, from, 3 * PAGE);
    finish(&queue);
    puts(to);
    uint64_t none = 0;
    REQUIRE(ioctl(queue.kfd, FREE, &none) != 0);
    close_queue(&queue);
    return 0;
}
