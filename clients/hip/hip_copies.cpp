// SPDX-License-Identifier: GPL-2.0 OR MIT
//
// HIP as a program uses it, as far as that is copies: device, host and registered memory, synchronous and asynchronous, streams and events,
// between all pairs of GPUs. Every byte is compared.
//
// Usage: hip_copies GPUS BUFFERS      prints what it did; exit code 0, or 1 with what was wrong
//        hip_copies within            a copy within one GPU, which HIP does with a kernel
#include <hip/hip_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <sys/mman.h>

namespace {

using Bytes = std::vector<unsigned char>;

[[noreturn]] void fail(const std::string &what)
{
    std::printf("FAILED: %s\n", what.c_str());
    std::fflush(stdout);
    std::_Exit(1);
}

void check(hipError_t status, const char *call, int line)
{
    if (status != hipSuccess)
        fail(std::string(call) + " in line " + std::to_string(line) + ": " + hipGetErrorString(status));
}

#define CHECK(call) check((call), #call, __LINE__)

// Bytes that differ from each other wherever they are and whatever `seed` is.
void fill(unsigned char *at, size_t size, uint64_t seed)
{
    uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
    for (size_t i = 0; i < size; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        at[i] = static_cast<unsigned char>(state >> 24);
    }
}

void compare(const std::string &what, const unsigned char *got, const unsigned char *sent, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (got[i] != sent[i])
            fail(what + ": byte " + std::to_string(i) + " of " + std::to_string(size) + " is " + std::to_string(got[i]) +
                 " instead of " + std::to_string(sent[i]));
}

size_t copied = 0;

// Pageable memory, both ways, at odd places.
void pageable(int gpu)
{
    for (size_t size : {size_t(1), size_t(3), size_t(4096), size_t(65536 + 5), (size_t(1) << 20) + 1, size_t(9) << 20}) {
        unsigned char *device = nullptr;
        CHECK(hipMalloc(reinterpret_cast<void **>(&device), size + 64));
        Bytes sent(size), got(size, 0xee);
        for (size_t offset : {0, 1, 63}) {
            fill(sent.data(), size, size + offset + gpu);
            CHECK(hipMemcpy(device + offset, sent.data(), size, hipMemcpyHostToDevice));
            CHECK(hipMemcpy(got.data(), device + offset, size, hipMemcpyDeviceToHost));
            compare("pageable memory", got.data(), sent.data(), size);
            std::memset(got.data(), 0x11, size);
            CHECK(hipMemcpy(got.data(), sent.data(), size, hipMemcpyHostToHost));
            compare("host to host", got.data(), sent.data(), size);
            copied += size;
        }
        CHECK(hipFree(device));
    }
}

// Pinned memory on several streams at once, ordered by events.
void streams(int gpu)
{
    constexpr int COUNT = 4;
    constexpr size_t SIZE = (2 << 20) + 4096;
    hipStream_t up[COUNT], down[COUNT];
    hipEvent_t there[COUNT], back[COUNT];
    unsigned char *device[COUNT], *sent[COUNT], *got[COUNT];
    for (int i = 0; i < COUNT; i++) {
        CHECK(hipStreamCreate(&up[i]));
        CHECK(hipStreamCreateWithFlags(&down[i], hipStreamNonBlocking));
        CHECK(hipEventCreate(&there[i]));
        CHECK(hipEventCreateWithFlags(&back[i], hipEventDisableTiming));
        CHECK(hipMalloc(reinterpret_cast<void **>(&device[i]), SIZE));
        CHECK(hipHostMalloc(reinterpret_cast<void **>(&sent[i]), SIZE));
        CHECK(hipHostMalloc(reinterpret_cast<void **>(&got[i]), SIZE));
    }
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < COUNT; i++) {
            fill(sent[i], SIZE, 100 * gpu + 10 * round + i);
            std::memset(got[i], 0x22, SIZE);
            CHECK(hipMemcpyAsync(device[i], sent[i], SIZE, hipMemcpyHostToDevice, up[i]));
            CHECK(hipEventRecord(there[i], up[i]));
            CHECK(hipStreamWaitEvent(down[i], there[i], 0));
            CHECK(hipMemcpyAsync(got[i], device[i], SIZE, hipMemcpyDeviceToHost, down[i]));
            CHECK(hipEventRecord(back[i], down[i]));
        }
        for (int i = 0; i < COUNT; i++) {
            CHECK(hipEventSynchronize(back[i]));
            CHECK(hipEventQuery(there[i]));
            CHECK(hipStreamQuery(down[i]));
            compare("stream " + std::to_string(i), got[i], sent[i], SIZE);
            copied += SIZE;
        }
        float milliseconds = -1;
        CHECK(hipEventElapsedTime(&milliseconds, there[0], there[COUNT - 1]));
    }
    for (int i = 0; i < COUNT; i++) {
        CHECK(hipStreamSynchronize(up[i]));
        CHECK(hipStreamDestroy(up[i]));
        CHECK(hipStreamDestroy(down[i]));
        CHECK(hipEventDestroy(there[i]));
        CHECK(hipEventDestroy(back[i]));
        CHECK(hipFree(device[i]));
        CHECK(hipHostFree(sent[i]));
        CHECK(hipHostFree(got[i]));
    }
}

// Scattered buffers of the program's own memory, registered one by one.
void registered(int gpu, size_t count)
{
    constexpr size_t STRIDE = 6 * 4096;
    void *area = mmap(nullptr, count * STRIDE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (area == MAP_FAILED)
        fail("mmap");
    auto place = [&](size_t i) { return static_cast<unsigned char *>(area) + i * STRIDE + i % 7 * 256; };
    auto length = [](size_t i) { return 4096 + i % 5 * 4096 / 3 + i % 11; };
    unsigned char *device = nullptr;
    CHECK(hipMalloc(reinterpret_cast<void **>(&device), count * STRIDE));
    hipStream_t stream;
    CHECK(hipStreamCreate(&stream));
    for (size_t i = 0; i < count; i++) {
        fill(place(i), length(i), 1000 * gpu + i);
        CHECK(hipHostRegister(place(i), length(i), hipHostRegisterDefault));
        void *seen = nullptr;
        CHECK(hipHostGetDevicePointer(&seen, place(i), 0));
        if (seen == nullptr)
            fail("a registered buffer has no device pointer");
    }
    for (size_t i = 0; i < count; i++)
        CHECK(hipMemcpyAsync(device + i * STRIDE, place(i), length(i), hipMemcpyHostToDevice, stream));
    CHECK(hipStreamSynchronize(stream));
    Bytes got(count * STRIDE);
    CHECK(hipMemcpy(got.data(), device, got.size(), hipMemcpyDeviceToHost));
    for (size_t i = 0; i < count; i++) {
        compare("registered buffer " + std::to_string(i), &got[i * STRIDE], place(i), length(i));
        copied += length(i);
    }
    // Back into them, from somewhere else.
    Bytes other(count * STRIDE);
    fill(other.data(), other.size(), 7 + gpu);
    CHECK(hipMemcpy(device, other.data(), other.size(), hipMemcpyHostToDevice));
    for (size_t i = 0; i < count; i++)
        CHECK(hipMemcpyAsync(place(i), device + i * STRIDE, length(i), hipMemcpyDeviceToHost, stream));
    CHECK(hipStreamSynchronize(stream));
    for (size_t i = 0; i < count; i++) {
        compare("into registered buffer " + std::to_string(i), place(i), &other[i * STRIDE], length(i));
        copied += length(i);
        CHECK(hipHostUnregister(place(i)));
    }
    CHECK(hipStreamDestroy(stream));
    CHECK(hipFree(device));
    munmap(area, count * STRIDE);
}

// From each GPU to each other one.
void peers(int gpus)
{
    constexpr size_t SIZE = (4 << 20) + 256;
    std::vector<unsigned char *> device(gpus);
    for (int gpu = 0; gpu < gpus; gpu++) {
        CHECK(hipSetDevice(gpu));
        CHECK(hipMalloc(reinterpret_cast<void **>(&device[gpu]), SIZE));
        for (int peer = 0; peer < gpus; peer++) {
            int can = 0;
            if (peer != gpu)
                CHECK(hipDeviceCanAccessPeer(&can, gpu, peer));
            if (can)
                CHECK(hipDeviceEnablePeerAccess(peer, 0));
        }
    }
    Bytes sent(SIZE), got(SIZE);
    for (int from = 0; from < gpus; from++)
        for (int to = 0; to < gpus; to++) {
            if (from == to)
                continue;
            CHECK(hipSetDevice(from));
            fill(sent.data(), SIZE, 50 * from + to);
            CHECK(hipMemcpy(device[from], sent.data(), SIZE, hipMemcpyHostToDevice));
            if ((from + to) % 2)
                CHECK(hipMemcpyPeer(device[to], to, device[from], from, SIZE));
            else {
                CHECK(hipMemcpyPeerAsync(device[to], to, device[from], from, SIZE, nullptr));
                CHECK(hipDeviceSynchronize());
            }
            CHECK(hipSetDevice(to));
            CHECK(hipMemcpy(got.data(), device[to], SIZE, hipMemcpyDeviceToHost));
            compare("GPU " + std::to_string(from) + " to " + std::to_string(to), got.data(), sent.data(), SIZE);
            copied += SIZE;
        }
    for (int gpu = 0; gpu < gpus; gpu++) {
        CHECK(hipSetDevice(gpu));
        CHECK(hipFree(device[gpu]));
    }
}

int within()
{
    void *device = nullptr;
    CHECK(hipMalloc(&device, 1 << 20));
    CHECK(hipMemcpy(static_cast<char *>(device) + 4096, device, 4096, hipMemcpyDeviceToDevice));
    CHECK(hipDeviceSynchronize());
    std::printf("copied\n");
    return 0;
}

} // namespace

int main(int argc, char **argv)
{
    if (argc == 2 && std::string(argv[1]) == "within")
        return within();
    if (argc != 3)
        fail("usage: hip_copies GPUS BUFFERS");
    int wanted = std::atoi(argv[1]), gpus = 0;
    CHECK(hipGetDeviceCount(&gpus));
    if (gpus != wanted)
        fail("there are " + std::to_string(gpus) + " GPUs");
    for (int gpu = 0; gpu < gpus; gpu++) {
        CHECK(hipSetDevice(gpu));
        hipDeviceProp_t properties;
        CHECK(hipGetDeviceProperties(&properties, gpu));
        pageable(gpu);
        streams(gpu);
        registered(gpu, std::strtoull(argv[2], nullptr, 10));
        std::printf("GPU %d is %s: pageable, pinned and registered memory, all bytes right\n", gpu, properties.gcnArchName);
    }
    peers(gpus);
    std::printf("%zu bytes, between %d GPUs, all bytes right\n", copied, gpus);
    std::printf("ok\n");
    return 0;
}
