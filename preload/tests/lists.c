/* SPDX-License-Identifier: GPL-2.0 OR MIT
 *
 * What a monitor reads of processes, in the way in which nvtop and AMD's libraries walk there. Run by
 * cli/tests/it/monitors.rs under `vkfd run`.
 *
 *   own      uses a GPU itself (2 MiB of its memory, a copy, an eviction), and prints the list of processes and what
 *            /proc says of its own descriptors.
 *   room     asks a render node with more room than the answer has, and prints how many bytes were written.
 *   of PID   prints what /proc says of another program's descriptors, each time that it gets a line.
 */
#define _GNU_SOURCE
#include "queue.h"
#include <ctype.h>
#include <dirent.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#define LIST "/sys/class/kfd/kfd/proc"
/* Memory of the GPU that may be written. */
#define VRAM 0x80000001u
#define BYTES (4ul << 20)

static void print_file(FILE *file, const char *before)
{
    char line[256];
    REQUIRE(file);
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        printf("%s: %s\n", before, line);
    }
    fclose(file);
}

/* By absolute paths, as rocm-smi's library. */
static void print_tree(const char *path)
{
    DIR *directory = opendir(path);
    REQUIRE(directory);
    for (struct dirent *entry; (entry = readdir(directory));) {
        char name[512];
        struct stat status;
        if (entry->d_name[0] == '.')
            continue;
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        REQUIRE(stat(name, &status) == 0);
        if (S_ISDIR(status.st_mode))
            print_tree(name);
        else
            print_file(fopen(name, "r"), name + strlen(LIST) + 1);
    }
    closedir(directory);
}

/* By names relative to open directories, as nvtop. */
static void print_about(const char *pid)
{
    DIR *all = opendir("/proc");
    REQUIRE(all);
    int process = openat(dirfd(all), pid, O_DIRECTORY);
    REQUIRE(process >= 0);
    int fds = openat(process, "fd", O_DIRECTORY), about = openat(process, "fdinfo", O_DIRECTORY);
    REQUIRE(fds >= 0 && about >= 0);
    DIR *list = fdopendir(about);
    for (struct dirent *entry; (entry = readdir(list));) {
        struct stat status;
        if (!isdigit(entry->d_name[0]) || fstatat(fds, entry->d_name, &status, 0) < 0)
            continue;
        if (!S_ISCHR(status.st_mode) || (major(status.st_rdev) != 226 && major(status.st_rdev) != 510))
            continue;
        char link[64] = {0};
        REQUIRE(readlinkat(fds, entry->d_name, link, sizeof link - 1) > 0);
        printf("device %s %u:%u\n", link, major(status.st_rdev), minor(status.st_rdev));
        print_file(fdopen(openat(dirfd(list), entry->d_name, O_RDONLY), "r"), link);
    }
    closedir(list);
    close(fds);
    close(process);
    closedir(all);
    puts("end");
    fflush(stdout);
}

static unsigned long evicted_ms(uint32_t gpu_id)
{
    char path[128];
    unsigned long milliseconds = 0;
    snprintf(path, sizeof path, LIST "/%d/stats_%u/evicted_ms", getpid(), gpu_id);
    FILE *file = fopen(path, "r");
    if (!file)
        return 0;
    REQUIRE(fscanf(file, "%lu", &milliseconds) == 1);
    fclose(file);
    return milliseconds;
}

static void use_gpu(void)
{
    struct queue queue;
    open_queue(&queue);
    char *to = pages(BYTES), *from = pages(BYTES);
    register_memory(&queue, to, BYTES);
    register_memory(&queue, from, BYTES);
    struct alloc alloc = {.va = (uintptr_t)pages(BYTES), .size = BYTES / 2, .gpu_id = queue.gpu_id, .flags = VRAM};
    REQUIRE(ioctl(queue.kfd, ALLOC, &alloc) == 0);
    copy(&queue, to, from, BYTES);
    finish(&queue);
    /* Queues stop until the pages are there again. A second is enough for many times. */
    for (int turn = 0; turn < 100 && evicted_ms(queue.gpu_id) == 0; turn++) {
        REQUIRE(madvise(to, BYTES, MADV_DONTNEED) == 0);
        usleep(10000);
    }
}

int main(int count, char **arguments)
{
    REQUIRE(count > 1);
    if (strcmp(arguments[1], "own") == 0) {
        use_gpu();
        print_tree(LIST);
        print_about("self");
        return 0;
    }
    if (strcmp(arguments[1], "room") == 0) {
        unsigned char room[96];
        memset(room, 0xee, sizeof room);
        int render = open("/dev/dri/renderD128", O_RDWR);
        REQUIRE(render >= 0);
        /* Of amdgpu_drm.h: AMDGPU_INFO_VRAM_GTT, whose answer has 24 bytes. AMD's library says 96. */
        struct { uint64_t to; uint32_t size, query, more[4]; } info = {(uintptr_t)room, sizeof room, 0x14, {0}};
        REQUIRE(ioctl(render, 0x40206445ul, &info) == 0);
        size_t written = sizeof room;
        while (written > 0 && room[written - 1] == 0xee)
            written--;
        printf("written %zu of 24\n", written);
        return 0;
    }
    REQUIRE(count > 2);
    for (char line[16]; fgets(line, sizeof line, stdin);)
        print_about(arguments[2]);
    return 0;
}
