// SPDX-License-Identifier: GPL-2.0 OR MIT
//
// HIP's managed memory: allocated, advised, prefetched to each GPU and back (hipMemPrefetchAsync), set and copied by GPUs and used by the CPU at
// the same addresses all the while. Every byte is compared.
//
// Usage: hip_managed GPUS      prints what it did; exit code 0, or 1 with what was wrong
#include <hip/hip_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "check.h"

namespace {

constexpr size_t BYTES = 8 << 20;

// No byte of which is zero, as memory is that nobody has written.
uint64_t word(size_t i, uint64_t seed)
{
    return (i * 5 + seed) | 0x8080808080808080;
}

void fill(uint64_t *at, uint64_t seed)
{
    for (size_t i = 0; i < BYTES / 8; i++)
        at[i] = word(i, seed);
}

void expect(const std::string &what, const uint64_t *at, uint64_t seed)
{
    for (size_t i = 0; i < BYTES / 8; i++)
        if (at[i] != word(i, seed))
            fail(what + ": word " + std::to_string(i) + " is " + std::to_string(at[i]) + " instead of " + std::to_string(word(i, seed)));
}

void prefetch(void *memory, int device, hipStream_t stream)
{
    CHECK(hipMemPrefetchAsync(memory, BYTES, device, stream));
    CHECK(hipStreamSynchronize(stream));
    int last = -100;
    CHECK(hipMemRangeGetAttribute(&last, sizeof last, hipMemRangeAttributeLastPrefetchLocation, memory, BYTES));
    if (last != device)
        fail("the last prefetch was to " + std::to_string(device) + ", and HIP is told " + std::to_string(last));
}

void on(int gpu, uint64_t *memory, uint64_t *other)
{
    CHECK(hipSetDevice(gpu));
    hipStream_t stream;
    CHECK(hipStreamCreate(&stream));
    uint64_t *device = nullptr;
    CHECK(hipMalloc(reinterpret_cast<void **>(&device), BYTES));
    fill(memory, gpu);
    prefetch(memory, gpu, stream);
    expect("the CPU reads what is on the GPU", memory, gpu);
    fill(memory, gpu + 10);
    CHECK(hipMemcpyAsync(device, memory, BYTES, hipMemcpyDefault, stream));
    CHECK(hipMemcpyAsync(other, device, BYTES, hipMemcpyDefault, stream));
    CHECK(hipStreamSynchronize(stream));
    expect("the GPU reads what the CPU wrote there", other, gpu + 10);
    CHECK(hipMemsetAsync(memory, 0x5a, BYTES, stream));
    CHECK(hipStreamSynchronize(stream));
    for (size_t i = 0; i < BYTES / 8; i++)
        if (memory[i] != 0x5a5a5a5a5a5a5a5a)
            fail("memset of managed memory on the GPU: word " + std::to_string(i));
    fill(memory, gpu + 20);
    prefetch(memory, hipCpuDeviceId, stream);
    expect("the CPU, after it came back", memory, gpu + 20);
    CHECK(hipFree(device));
    CHECK(hipStreamDestroy(stream));
}

} // namespace

int main(int argc, char **argv)
{
    int wanted = argc > 1 ? std::atoi(argv[1]) : 1, gpus = 0;
    CHECK(hipGetDeviceCount(&gpus));
    if (gpus != wanted)
        fail(std::to_string(gpus) + " devices instead of " + std::to_string(wanted));
    int managed = 0;
    CHECK(hipDeviceGetAttribute(&managed, hipDeviceAttributeManagedMemory, 0));
    if (!managed)
        fail("HIP finds no managed memory");
    uint64_t *memory = nullptr, *other = nullptr;
    CHECK(hipMallocManaged(reinterpret_cast<void **>(&memory), BYTES, hipMemAttachGlobal));
    CHECK(hipMallocManaged(reinterpret_cast<void **>(&other), BYTES, hipMemAttachGlobal));
    for (int gpu = 0; gpu < gpus; gpu++) {
        CHECK(hipMemAdvise(memory, BYTES, hipMemAdviseSetAccessedBy, gpu));
        CHECK(hipMemAdvise(other, BYTES, hipMemAdviseSetAccessedBy, gpu));
    }
    CHECK(hipMemAdvise(memory, BYTES, hipMemAdviseSetPreferredLocation, 0));
    int preferred = -100;
    CHECK(hipMemRangeGetAttribute(&preferred, sizeof preferred, hipMemRangeAttributePreferredLocation, memory, BYTES));
    if (preferred != 0)
        fail("the preferred location is " + std::to_string(preferred));
    for (int gpu = 0; gpu < gpus; gpu++)
        on(gpu, memory, other);
    CHECK(hipFree(memory));
    CHECK(hipFree(other));
    std::printf("managed memory on %d GPUs, all bytes right\nok\n", gpus);
    return 0;
}
