/* SPDX-License-Identifier: GPL-2.0 OR MIT
 *
 * SVM as a program uses it through ROCR, which is hipMemPrefetchAsync's way, too: memory from mmap, no handle and no copy. It is given to all
 * GPUs, prefetched to each in turn and back, read and written by GPUs and CPU at its own addresses, and its attributes are read back.
 *
 * What moves is seen from outside of the runtime, by KFD's own events of each GPU (SMI): prefetches move every page, and
 * nothing else moves any.
 *
 * Usage: svm MIB. Prints its steps; exit code 0, or 1 with the failure.
 */
#include <errno.h>
#include <fcntl.h>
#include <hsa/hsa.h>
#include <hsa/hsa_ext_amd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

/* From linux/kfd_ioctl.h, which needs libdrm's headers. */
struct smi_events {
    uint32_t gpuid, anon_fd;
};
#define SMI_EVENTS _IOWR('K', 0x1f, struct smi_events)
#define MIGRATE_END 6

#define PAGE 4096u
#define MOST_AGENTS 32

/* A GPU agent, memory of its own that is no SVM memory, and its events. */
struct gpu {
    hsa_agent_t agent;
    uint64_t *memory;
    int events;
    /* Pages that events report as moved to this GPU, and away from it. */
    unsigned long in, out;
};

static hsa_agent_t cpu;
static struct gpu gpus[MOST_AGENTS];
static unsigned gpu_count;

static hsa_status_t collect_agent(hsa_agent_t agent, void *data)
{
    hsa_device_type_t type;
    (void)data;
    CHECK(hsa_agent_get_info(agent, HSA_AGENT_INFO_DEVICE, &type));
    if (type == HSA_DEVICE_TYPE_CPU && cpu.handle == 0)
        cpu = agent;
    else if (type == HSA_DEVICE_TYPE_GPU && gpu_count < MOST_AGENTS)
        gpus[gpu_count++].agent = agent;
    return HSA_STATUS_SUCCESS;
}

static hsa_status_t find_pool(hsa_amd_memory_pool_t pool, void *data)
{
    hsa_amd_segment_t segment;
    bool allowed;
    CHECK(hsa_amd_memory_pool_get_info(pool, HSA_AMD_MEMORY_POOL_INFO_SEGMENT, &segment));
    CHECK(hsa_amd_memory_pool_get_info(pool, HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALLOWED, &allowed));
    if (segment != HSA_AMD_SEGMENT_GLOBAL || !allowed)
        return HSA_STATUS_SUCCESS;
    *(hsa_amd_memory_pool_t *)data = pool;
    return HSA_STATUS_INFO_BREAK;
}

/* Events are of the process that the runtime is to KFD, so they are asked for by its descriptor: what is no KFD's knows no such call. */
static void listen_to(struct gpu *gpu)
{
    uint32_t node = 0;
    unsigned id = 0;
    char path[96];
    CHECK(hsa_agent_get_info(gpu->agent, (hsa_agent_info_t)HSA_AMD_AGENT_INFO_DRIVER_NODE_ID, &node));
    snprintf(path, sizeof path, "/sys/devices/virtual/kfd/kfd/topology/nodes/%u/gpu_id", node);
    FILE *file = fopen(path, "r");
    REQUIRE(file && fscanf(file, "%u", &id) == 1, "%s", path);
    fclose(file);
    struct smi_events args = {.gpuid = id};
    int kfd = 3;
    while (kfd < 1024 && ioctl(kfd, SMI_EVENTS, &args) != 0)
        kfd++;
    REQUIRE(kfd < 1024, "no descriptor gives events of GPU %u", id);
    gpu->events = (int)args.anon_fd;
    REQUIRE(fcntl(gpu->events, F_SETFL, O_NONBLOCK) == 0, "fcntl: %s", strerror(errno));
    uint64_t mask = UINT64_C(1) << (MIGRATE_END - 1);
    REQUIRE(write(gpu->events, &mask, sizeof mask) == sizeof mask, "select events: %s", strerror(errno));
}

/* Adds up what events have come. A line: 6 NANOSECONDS -PID @PAGE(PAGES) FROM->TO TRIGGER ERROR, in hexadecimal but for time, pid and the last two. */
static void count_moves(struct gpu *gpu)
{
    char text[1024];
    ssize_t length;
    while ((length = read(gpu->events, text, sizeof text - 1)) > 0) {
        text[length] = 0;
        for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
            unsigned long long at;
            unsigned long pages;
            unsigned from, to;
            int error = 0, event, pid, trigger;
            unsigned long long when;
            int fields = sscanf(line, "%x %llu -%d @%llx(%lx) %x->%x %d %d", (unsigned *)&event, &when, &pid, &at, &pages,
                                &from, &to, &trigger, &error);
            REQUIRE(fields >= 8 && event == MIGRATE_END && pid == getpid(), "event %s", line);
            if (to)
                gpu->in += pages;
            else
                gpu->out += pages;
        }
    }
    REQUIRE(length < 0 && errno == EAGAIN, "read events: %s", strerror(errno));
}

static unsigned long moves(void)
{
    unsigned long all = 0;
    for (unsigned i = 0; i < gpu_count; i++) {
        count_moves(&gpus[i]);
        all += gpus[i].in + gpus[i].out;
    }
    return all;
}

static void copy(void *to, const void *from, size_t bytes, const struct gpu *gpu)
{
    hsa_signal_t done;
    CHECK(hsa_signal_create(1, 0, NULL, &done));
    CHECK(hsa_amd_memory_async_copy(to, gpu->agent, from, gpu->agent, bytes, 0, NULL, done));
    wait_for(done);
    CHECK(hsa_signal_destroy(done));
}

static void prefetch(void *memory, size_t bytes, hsa_agent_t agent)
{
    hsa_signal_t done;
    CHECK(hsa_signal_create(1, 0, NULL, &done));
    CHECK(hsa_amd_svm_prefetch_async(memory, bytes, agent, 0, NULL, done));
    wait_for(done);
    CHECK(hsa_signal_destroy(done));
    hsa_amd_svm_attribute_pair_t asked = {.attribute = HSA_AMD_SVM_ATTRIB_PREFETCH_LOCATION};
    CHECK(hsa_amd_svm_attributes_get(memory, bytes, &asked, 1));
    REQUIRE(asked.value == agent.handle, "the prefetch location is %#lx, not %#lx", (long)asked.value, (long)agent.handle);
}

static void fill(uint64_t *memory, size_t bytes, uint64_t seed)
{
    for (size_t i = 0; i < bytes / 8; i++)
        memory[i] = i * 3 + seed;
}

static void expect(const uint64_t *memory, size_t bytes, uint64_t seed, const char *who)
{
    for (size_t i = 0; i < bytes / 8; i++)
        REQUIRE(memory[i] == i * 3 + seed, "%s: word %zu is %#lx, not %#lx", who, i, (long)memory[i], (long)(i * 3 + seed));
}

/* The GPU reads `memory` into its own and writes it back from there, into `result`, which is SVM memory, too. */
static void gpu_reads(const struct gpu *gpu, const uint64_t *memory, uint64_t *result, size_t bytes)
{
    copy(gpu->memory, memory, bytes, gpu);
    copy(result, gpu->memory, bytes, gpu);
}

static void everywhere(size_t bytes)
{
    uint64_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t *result = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED && result != MAP_FAILED, "mmap");
    hsa_amd_svm_attribute_pair_t access[MOST_AGENTS];
    for (unsigned i = 0; i < gpu_count; i++)
        access[i] = (hsa_amd_svm_attribute_pair_t){HSA_AMD_SVM_ATTRIB_AGENT_ACCESSIBLE_IN_PLACE, gpus[i].agent.handle};
    fill(memory, bytes, 1);
    CHECK(hsa_amd_svm_attributes_set(memory, bytes, access, gpu_count));
    CHECK(hsa_amd_svm_attributes_set(result, bytes, access, gpu_count));
    REQUIRE(moves() == 0, "something has moved by itself");
    uint64_t seed = 1;
    for (unsigned home = 0; home < gpu_count; home++) {
        unsigned long there = gpus[home].in;
        prefetch(memory, bytes, gpus[home].agent);
        moves();
        REQUIRE(gpus[home].in - there == bytes / PAGE, "%lu pages moved to GPU %u, not %lu", gpus[home].in - there, home,
                (long)(bytes / PAGE));
        unsigned long before = moves();
        for (unsigned i = 0; i < gpu_count; i++) {
            memset(result, 0xa5, bytes);
            gpu_reads(&gpus[i], memory, result, bytes);
            expect(result, bytes, seed, "a GPU");
        }
        REQUIRE(moves() == before, "pages moved because GPUs read them");
        expect(memory, bytes, seed, "the CPU");
        fill(memory, bytes, ++seed);
        REQUIRE(moves() == before, "pages moved because the CPU read and wrote them");
        /* What the CPU has written, GPUs read; and the last of them writes something else. */
        fill(result, bytes, ++seed);
        struct gpu *last = &gpus[(home + 1) % gpu_count];
        copy(last->memory, result, bytes, last);
        copy(memory, last->memory, bytes, last);
        expect(memory, bytes, seed, "the CPU, after a GPU has written");
    }
    prefetch(memory, bytes, cpu);
    expect(memory, bytes, seed, "the CPU, in the end");
    moves();
    unsigned long in = 0, out = 0;
    for (unsigned i = 0; i < gpu_count; i++) {
        in += gpus[i].in;
        out += gpus[i].out;
    }
    REQUIRE(in > 0 && out > 0, "%lu pages in, %lu out", in, out);
    munmap(memory, bytes);
    munmap(result, bytes);
}

/* Attributes that were set are read back. */
static void attributes(size_t bytes)
{
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED, "mmap");
    hsa_agent_t agent = gpus[0].agent;
    hsa_amd_svm_attribute_pair_t set[] = {
        {HSA_AMD_SVM_ATTRIB_PREFERRED_LOCATION, agent.handle}, {HSA_AMD_SVM_ATTRIB_MIGRATION_GRANULARITY, 6},
        {HSA_AMD_SVM_ATTRIB_READ_ONLY, 1},   {HSA_AMD_SVM_ATTRIB_READ_MOSTLY, 1},
        {HSA_AMD_SVM_ATTRIB_HIVE_LOCAL, 1},  {HSA_AMD_SVM_ATTRIB_GLOBAL_FLAG, HSA_AMD_SVM_GLOBAL_FLAG_COARSE_GRAINED},
        {HSA_AMD_SVM_ATTRIB_AGENT_ACCESSIBLE, agent.handle},
    };
    CHECK(hsa_amd_svm_attributes_set(memory, bytes, set, sizeof set / sizeof *set));
    hsa_amd_svm_attribute_pair_t get[sizeof set / sizeof *set];
    memcpy(get, set, sizeof set);
    for (unsigned i = 0; i + 1 < sizeof set / sizeof *set; i++)
        get[i].value = ~0ul;
    get[6].attribute = HSA_AMD_SVM_ATTRIB_ACCESS_QUERY;
    CHECK(hsa_amd_svm_attributes_get(memory, bytes, get, sizeof get / sizeof *get));
    for (unsigned i = 0; i < sizeof get / sizeof *get; i++) {
        /* ROCR 5.2.3 gives a flag's bit for true. */
        int flag = set[i].attribute == HSA_AMD_SVM_ATTRIB_READ_ONLY || set[i].attribute == HSA_AMD_SVM_ATTRIB_READ_MOSTLY ||
                   set[i].attribute == HSA_AMD_SVM_ATTRIB_HIVE_LOCAL;
        uint64_t value = flag ? get[i].value != 0 : get[i].value;
        REQUIRE(get[i].attribute == set[i].attribute && value == set[i].value, "attribute %#lx is %#lx; %#lx was set to %#lx",
                (long)get[i].attribute, (long)get[i].value, (long)set[i].attribute, (long)set[i].value);
    }
    munmap(memory, bytes);
}

int main(int argc, char **argv)
{
    size_t bytes = (size_t)(argc > 1 ? atoi(argv[1]) : 16) << 20;
    CHECK(hsa_init());
    CHECK(hsa_iterate_agents(collect_agent, NULL));
    REQUIRE(gpu_count > 0, "there is no GPU agent");
    bool supported = false;
    CHECK(hsa_system_get_info((hsa_system_info_t)HSA_AMD_SYSTEM_INFO_SVM_SUPPORTED, &supported));
    REQUIRE(supported, "the runtime finds no SVM");
    for (unsigned i = 0; i < gpu_count; i++) {
        hsa_amd_memory_pool_t pool = {0};
        REQUIRE(hsa_amd_agent_iterate_memory_pools(gpus[i].agent, find_pool, &pool) == HSA_STATUS_INFO_BREAK, "no memory");
        CHECK(hsa_amd_memory_pool_allocate(pool, bytes, 0, (void **)&gpus[i].memory));
        listen_to(&gpus[i]);
    }
    attributes(bytes);
    everywhere(bytes);
    for (unsigned i = 0; i < gpu_count; i++) {
        printf("GPU %u: %lu pages moved there, %lu back to system memory, by KFD's events\n", i, gpus[i].in, gpus[i].out);
        CHECK(hsa_amd_memory_pool_free(gpus[i].memory));
    }
    CHECK(hsa_shut_down());
    printf("%zu bytes on %u GPUs, all bytes right\nok\n", bytes, gpu_count);
    return 0;
}
