/* SPDX-License-Identifier: GPL-2.0 OR MIT
 *
 * ROCR as a program uses it. Every GPU agent gets a queue. Thousands of scattered buffers of the program's own memory are
 * locked, copied into the GPU's memory and back into other buffers, and compared byte for byte. The copies are
 * asynchronous, each with a signal. hsa_amd_pointer_info must know the kind of each address.
 *
 * Usage: copies BUFFERS. Prints its steps; exit code 0, or 1 with the failure.
 */
#include <hsa/hsa.h>
#include <hsa/hsa_ext_amd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "check.h"

#define PAGE 4096u
#define MOST_AGENTS 32

struct agents {
    hsa_agent_t cpu, gpus[MOST_AGENTS];
    unsigned gpu_count;
};

static hsa_status_t collect_agent(hsa_agent_t agent, void *data)
{
    struct agents *agents = data;
    hsa_device_type_t type;
    hsa_status_t status = hsa_agent_get_info(agent, HSA_AGENT_INFO_DEVICE, &type);
    if (status != HSA_STATUS_SUCCESS)
        return status;
    if (type == HSA_DEVICE_TYPE_CPU)
        agents->cpu = agent;
    else if (type == HSA_DEVICE_TYPE_GPU && agents->gpu_count < MOST_AGENTS)
        agents->gpus[agents->gpu_count++] = agent;
    return HSA_STATUS_SUCCESS;
}

static hsa_status_t find_pool(hsa_amd_memory_pool_t pool, void *data)
{
    hsa_amd_segment_t segment;
    bool allowed;
    hsa_amd_memory_pool_get_info(pool, HSA_AMD_MEMORY_POOL_INFO_SEGMENT, &segment);
    hsa_amd_memory_pool_get_info(pool, HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALLOWED, &allowed);
    if (segment != HSA_AMD_SEGMENT_GLOBAL || !allowed)
        return HSA_STATUS_SUCCESS;
    *(hsa_amd_memory_pool_t *)data = pool;
    return HSA_STATUS_INFO_BREAK;
}

/* A buffer somewhere: never next to another one, at an odd offset in its page, of an odd size. */
struct buffer {
    unsigned char *mapping;
    size_t mapped, offset, size;
    void *device; /* for the GPU, once locked */
};

static uint64_t state = 0x9e3779b97f4a7c15u;

static uint64_t next_random(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static unsigned char *bytes_of(const struct buffer *buffer)
{
    return buffer->mapping + buffer->offset;
}

static struct buffer scattered(void)
{
    struct buffer buffer = {0};
    buffer.size = 1 + next_random() % (3 * PAGE);
    buffer.offset = next_random() % PAGE;
    buffer.mapped = (buffer.offset + buffer.size + PAGE - 1) / PAGE * PAGE;
    /* With a page of nothing on either side, so that no two are contiguous. */
    unsigned char *area = mmap(NULL, buffer.mapped + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(area != MAP_FAILED, "mmap");
    REQUIRE(mprotect(area + PAGE, buffer.mapped, PROT_READ | PROT_WRITE) == 0, "mprotect");
    buffer.mapping = area + PAGE;
    return buffer;
}

static void free_buffer(struct buffer *buffer)
{
    munmap(buffer->mapping - PAGE, buffer->mapped + 2 * PAGE);
}

static void lock(struct buffer *buffer, struct agents *agents)
{
    CHECK(hsa_amd_memory_lock(bytes_of(buffer), buffer->size, agents->gpus, (int)agents->gpu_count, &buffer->device));
    REQUIRE(buffer->device != NULL, "a locked buffer has no address");
    REQUIRE((uintptr_t)buffer->device % PAGE == buffer->offset, "the offset in the page is lost");
    hsa_amd_pointer_info_t info = {.size = sizeof info};
    CHECK(hsa_amd_pointer_info(buffer->device, &info, NULL, NULL, NULL));
    REQUIRE(info.type == HSA_EXT_POINTER_TYPE_LOCKED, "pointer_info of a locked buffer: type %d", info.type);
    REQUIRE(info.hostBaseAddress == (void *)bytes_of(buffer) && info.sizeInBytes >= buffer->size,
            "pointer_info of a locked buffer: host %p size %zu, locked %p size %zu", info.hostBaseAddress, info.sizeInBytes,
            (void *)bytes_of(buffer), buffer->size);
}

static void copy(void *to, hsa_agent_t to_agent, const void *from, hsa_agent_t from_agent, size_t size, hsa_signal_t done)
{
    CHECK(hsa_amd_memory_async_copy(to, to_agent, from, from_agent, size, 0, NULL, done));
}

/* All buffers into the GPU's memory, and from there into others; a signal each, none waited for before the last was asked for. */
static void round_trip(struct agents *agents, unsigned gpu, unsigned count)
{
    hsa_agent_t agent = agents->gpus[gpu];
    struct buffer *sources = calloc(count, sizeof *sources), *targets = calloc(count, sizeof *targets);
    hsa_signal_t *signals = calloc(count, sizeof *signals);
    REQUIRE(sources && targets && signals, "memory");
    size_t total = 0;
    for (unsigned i = 0; i < count; i++) {
        sources[i] = scattered();
        targets[i] = scattered();
        targets[i].size = sources[i].size;
        if (targets[i].offset + targets[i].size > targets[i].mapped) {
            free_buffer(&targets[i]);
            i--;
            continue;
        }
        for (size_t at = 0; at < sources[i].size; at++)
            bytes_of(&sources[i])[at] = (unsigned char)next_random();
        memset(targets[i].mapping, 0xa5, targets[i].mapped);
        total += (sources[i].size + 63) / 64 * 64;
    }
    for (unsigned i = 0; i < count; i++) {
        lock(&sources[i], agents);
        lock(&targets[i], agents);
        CHECK(hsa_signal_create(1, 0, NULL, &signals[i]));
    }
    hsa_amd_memory_pool_t pool = {0};
    hsa_status_t found = hsa_amd_agent_iterate_memory_pools(agent, find_pool, &pool);
    REQUIRE(found == HSA_STATUS_INFO_BREAK, "a GPU without memory");
    unsigned char *memory = NULL;
    CHECK(hsa_amd_memory_pool_allocate(pool, total, 0, (void **)&memory));
    hsa_amd_pointer_info_t info = {.size = sizeof info};
    CHECK(hsa_amd_pointer_info(memory, &info, NULL, NULL, NULL));
    REQUIRE(info.type == HSA_EXT_POINTER_TYPE_HSA && info.agentOwner.handle == agent.handle, "pointer_info of GPU memory");

    size_t at = 0;
    for (unsigned i = 0; i < count; at += (sources[i].size + 63) / 64 * 64, i++)
        copy(memory + at, agent, sources[i].device, agents->cpu, sources[i].size, signals[i]);
    for (unsigned i = 0; i < count; i++) {
        wait_for(signals[i]);
        hsa_signal_store_relaxed(signals[i], 1);
    }
    at = 0;
    for (unsigned i = 0; i < count; at += (sources[i].size + 63) / 64 * 64, i++)
        copy(targets[i].device, agents->cpu, memory + at, agent, sources[i].size, signals[i]);
    for (unsigned i = 0; i < count; i++)
        wait_for(signals[i]);

    for (unsigned i = 0; i < count; i++) {
        for (size_t byte = 0; byte < targets[i].mapped; byte++) {
            size_t begin = targets[i].offset;
            int inside = byte >= begin && byte < begin + targets[i].size;
            unsigned char expected = inside ? bytes_of(&sources[i])[byte - begin] : 0xa5;
            REQUIRE(targets[i].mapping[byte] == expected, "buffer %u, byte %zu of %zu: %#x, not %#x", i, byte - begin,
                    targets[i].size, targets[i].mapping[byte], expected);
        }
    }
    CHECK(hsa_amd_memory_pool_free(memory));
    for (unsigned i = 0; i < count; i++) {
        CHECK(hsa_amd_memory_unlock(bytes_of(&sources[i])));
        CHECK(hsa_amd_memory_unlock(bytes_of(&targets[i])));
        CHECK(hsa_signal_destroy(signals[i]));
        free_buffer(&sources[i]);
        free_buffer(&targets[i]);
    }
    char name[64] = "";
    CHECK(hsa_agent_get_info(agent, HSA_AGENT_INFO_NAME, name));
    printf("agent %u (%s): %u buffers, %zu bytes in device memory, both ways, all bytes right\n", gpu, name, count, total);
    free(sources);
    free(targets);
    free(signals);
}

/* An AQL queue runs a barrier packet. */
static void barrier(hsa_agent_t agent)
{
    hsa_queue_t *queue = NULL;
    CHECK(hsa_queue_create(agent, 64, HSA_QUEUE_TYPE_MULTI, NULL, NULL, UINT32_MAX, UINT32_MAX, &queue));
    hsa_signal_t done;
    CHECK(hsa_signal_create(1, 0, NULL, &done));
    uint64_t index = hsa_queue_add_write_index_relaxed(queue, 1);
    hsa_barrier_and_packet_t *packet = (hsa_barrier_and_packet_t *)queue->base_address + index % queue->size;
    memset((char *)packet + 4, 0, sizeof *packet - 4);
    packet->completion_signal = done;
    uint16_t header = HSA_PACKET_TYPE_BARRIER_AND << HSA_PACKET_HEADER_TYPE |
                      HSA_FENCE_SCOPE_SYSTEM << HSA_PACKET_HEADER_SCRELEASE_FENCE_SCOPE;
    __atomic_store_n(&packet->header, header, __ATOMIC_RELEASE);
    hsa_signal_store_screlease(queue->doorbell_signal, (hsa_signal_value_t)index);
    wait_for(done);
    CHECK(hsa_signal_destroy(done));
    CHECK(hsa_queue_destroy(queue));
}

int main(int argc, char **argv)
{
    unsigned count = argc > 1 ? (unsigned)atoi(argv[1]) : 2000;
    struct agents agents = {0};
    CHECK(hsa_init());
    CHECK(hsa_iterate_agents(collect_agent, &agents));
    REQUIRE(agents.gpu_count > 0, "there is no GPU agent");
    for (unsigned gpu = 0; gpu < agents.gpu_count; gpu++) {
        barrier(agents.gpus[gpu]);
        /* All buffers on the first; a few on the others. */
        round_trip(&agents, gpu, gpu == 0 ? count : count / 20 + 1);
    }
    CHECK(hsa_shut_down());
    printf("ok\n");
    return 0;
}
