// SPDX-License-Identifier: GPL-2.0 OR MIT
//
// HIP as a program uses it, as far as that is copies: device, host and registered memory, synchronous and asynchronous, streams and events,
// within each GPU and between all pairs of them, and memset. Every byte is compared, also around what was copied.
//
// Usage: hip_copies GPUS BUFFERS      prints what it did; exit code 0, or 1 with what was wrong
//        hip_copies memset            only memset
//        hip_copies kernel            compiles and launches a kernel of its own
#include <hip/hip_runtime.h>
#include <hip/hiprtc.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <sys/mman.h>

#include "check.h"

namespace {

using Bytes = std::vector<unsigned char>;

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

// Device memory with room around what is used, which nothing may touch.
class Area {
  public:
    explicit Area(size_t size) : size_(size)
    {
        CHECK(hipMalloc(reinterpret_cast<void **>(&device_), size));
        expected_.resize(size);
    }
    Area(const Area &) = delete;
    Area &operator=(const Area &) = delete;
    ~Area() { (void)hipFree(device_); }

    unsigned char *device() const { return device_; }
    // What must be there.
    Bytes &expected() { return expected_; }

    void set(uint64_t seed)
    {
        fill(expected_.data(), size_, seed);
        CHECK(hipMemcpy(device_, expected_.data(), size_, hipMemcpyHostToDevice));
    }

    void compare_all(const std::string &what)
    {
        Bytes got(size_);
        CHECK(hipMemcpy(got.data(), device_, size_, hipMemcpyDeviceToHost));
        compare(what, got.data(), expected_.data(), size_);
        copied += size_;
    }

  private:
    unsigned char *device_ = nullptr;
    size_t size_;
    Bytes expected_;
};

// From one place in a GPU's memory to another, with everything around it.
void within(int gpu)
{
    constexpr size_t SIZE = (size_t(3) << 20) + 4096;
    Area from(SIZE), to(SIZE);
    hipStream_t stream;
    CHECK(hipStreamCreate(&stream));
    int turn = 0;
    for (size_t size : {size_t(1), size_t(3), size_t(16), size_t(4096), size_t(65536 + 5), (size_t(3) << 20) + 1})
        for (size_t source : {0, 1, 16})
            for (size_t target : {0, 4, 63}) {
                from.set(size + source);
                to.set(size + target + 1 + gpu);
                if (turn++ % 2) {
                    CHECK(hipMemcpyAsync(to.device() + target, from.device() + source, size, hipMemcpyDeviceToDevice, stream));
                    CHECK(hipStreamSynchronize(stream));
                } else {
                    CHECK(hipMemcpy(to.device() + target, from.device() + source, size, hipMemcpyDeviceToDevice));
                    CHECK(hipDeviceSynchronize());
                }
                std::memcpy(&to.expected()[target], &from.expected()[source], size);
                to.compare_all("within a GPU, " + std::to_string(source) + " to " + std::to_string(target));
            }
    // Rows, and rows of slices: in bytes, in words, in units of 16 bytes.
    for (size_t unit : {1, 4, 16})
        for (size_t depth : {1, 3}) {
            const size_t width = 37 * unit, height = 19, pitch = 64 * unit, target_pitch = 48 * unit;
            from.set(unit);
            to.set(unit + 1);
            if (depth == 1) {
                CHECK(hipMemcpy2D(to.device() + unit, target_pitch, from.device() + 2 * unit, pitch, width, height,
                                  hipMemcpyDeviceToDevice));
            } else {
                hipMemcpy3DParms parms = {};
                parms.srcPtr = make_hipPitchedPtr(from.device() + 2 * unit, pitch, width, height);
                parms.dstPtr = make_hipPitchedPtr(to.device() + unit, target_pitch, width, height);
                parms.extent = make_hipExtent(width, height, depth);
                parms.kind = hipMemcpyDeviceToDevice;
                CHECK(hipMemcpy3D(&parms));
            }
            CHECK(hipDeviceSynchronize());
            for (size_t z = 0; z < depth; z++)
                for (size_t y = 0; y < height; y++)
                    std::memcpy(&to.expected()[unit + (z * height + y) * target_pitch],
                                &from.expected()[2 * unit + (z * height + y) * pitch], width);
            to.compare_all("rows within a GPU, units of " + std::to_string(unit));
        }
    CHECK(hipStreamDestroy(stream));
}

void memset_of_all_kinds(int gpu)
{
    constexpr size_t SIZE = (size_t(1) << 20) + 4096;
    Area area(SIZE);
    auto expect = [&](size_t at, const void *pattern, size_t unit, size_t count) {
        for (size_t i = 0; i < count; i++)
            std::memcpy(&area.expected()[at + i * unit], pattern, unit);
        CHECK(hipDeviceSynchronize());
        area.compare_all("memset of units of " + std::to_string(unit) + " at " + std::to_string(at));
    };
    const unsigned char byte = 0xa5;
    const uint16_t half = 0x1234;
    const uint32_t word = 0x89abcdef;
    for (size_t count : {size_t(1), size_t(2), size_t(15), size_t(4096), size_t(65536 + 3), size_t(1) << 20})
        for (size_t at : {0, 1, 4, 64}) {
            // HIP 5.2.3 fills up to the next multiple of 8 first, also when less is asked for, and then 2^64 bytes less.
            if (at % 8 + count < 8 && at % 8)
                continue;
            area.set(count + at + gpu);
            CHECK(hipMemset(area.device() + at, byte, count));
            expect(at, &byte, 1, count);
        }
    for (size_t at : {0, 4, 2048}) {
        area.set(at + gpu);
        CHECK(hipMemsetD16(area.device() + at, half, 1001));
        expect(at, &half, 2, 1001);
        CHECK(hipMemsetD32Async(area.device() + at, static_cast<int>(word), 5003, nullptr));
        expect(at, &word, 4, 5003);
    }
    for (size_t width : {1, 37, 256}) {
        area.set(width);
        CHECK(hipMemset2D(area.device() + 3, 512, byte, width, 21));
        CHECK(hipMemset3D(make_hipPitchedPtr(area.device() + 65536, 1024, width, 10), byte, make_hipExtent(width, 10, 3)));
        for (size_t y = 0; y < 30; y++)
            std::memset(&area.expected()[65536 + y * 1024], byte, width);
        for (size_t y = 0; y < 21; y++)
            std::memset(&area.expected()[3 + y * 512], byte, width);
        CHECK(hipDeviceSynchronize());
        area.compare_all("memset of rows of " + std::to_string(width));
    }
}

// A kernel of the program's own.
int kernel()
{
    const char *source = "extern \"C\" __global__ void add_one(int *at) { at[threadIdx.x] += 1; }";
    hiprtcProgram program;
    if (hiprtcCreateProgram(&program, source, "kernel.hip", 0, nullptr, nullptr) != HIPRTC_SUCCESS)
        fail("hiprtcCreateProgram");
    hipDeviceProp_t properties;
    CHECK(hipGetDeviceProperties(&properties, 0));
    const std::string target = std::string("--gpu-architecture=") + properties.gcnArchName;
    const char *options[] = {target.c_str()};
    if (hiprtcCompileProgram(program, 1, options) != HIPRTC_SUCCESS) {
        size_t size = 0;
        hiprtcGetProgramLogSize(program, &size);
        std::string log(size, ' ');
        hiprtcGetProgramLog(program, &log[0]);
        fail("hiprtcCompileProgram: " + log);
    }
    size_t size = 0;
    hiprtcGetCodeSize(program, &size);
    std::vector<char> code(size);
    hiprtcGetCode(program, code.data());
    hipModule_t module;
    hipFunction_t function;
    CHECK(hipModuleLoadData(&module, code.data()));
    CHECK(hipModuleGetFunction(&function, module, "add_one"));
    int *at = nullptr;
    CHECK(hipMalloc(reinterpret_cast<void **>(&at), 4096));
    std::vector<int> words(64);
    for (int i = 0; i < 64; i++)
        words[i] = 3 * i;
    CHECK(hipMemcpy(at, words.data(), 256, hipMemcpyHostToDevice));
    void *arguments[] = {&at};
    CHECK(hipModuleLaunchKernel(function, 1, 1, 1, 64, 1, 1, 0, nullptr, arguments, nullptr));
    CHECK(hipMemcpy(words.data(), at, 256, hipMemcpyDeviceToHost));
    for (int i = 0; i < 64; i++)
        if (words[i] != 3 * i + 1)
            fail("the kernel's result");
    std::printf("the kernel has run\n");
    return 0;
}

} // namespace

int main(int argc, char **argv)
{
    if (argc == 2 && std::string(argv[1]) == "kernel")
        return kernel();
    if (argc == 2 && std::string(argv[1]) == "memset") {
        memset_of_all_kinds(0);
        std::printf("ok\n");
        return 0;
    }
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
        within(gpu);
        memset_of_all_kinds(gpu);
        std::printf("GPU %d is %s: pageable, pinned, registered and device memory, memset, all bytes right\n", gpu, properties.gcnArchName);
    }
    peers(gpus);
    std::printf("%zu bytes, between %d GPUs, all bytes right\n", copied, gpus);
    std::printf("ok\n");
    return 0;
}
