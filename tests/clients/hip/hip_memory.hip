// SPDX-License-Identifier: GPL-2.0 OR MIT
// A HIP program that moves memory in each way that HIP has: copies of one, two and three dimensions, at once and in a
// stream, memset, symbols, host memory of each kind, and managed memory. Every byte is compared, also around what was
// copied. It says "right" after each test and "ok" at the end.
//
//        hip_memory [NAME...]

#include "tests.h"

#include <cstdint>
#include <cstring>

#include <sys/mman.h>

// HIP finds symbols by their names, which one of a nameless namespace does not have.
__device__ int symbol[100];
__constant__ int constant[100];

namespace {

using Bytes = std::vector<unsigned char>;

constexpr unsigned char NOTHING = 0xa5;

Bytes pattern(std::size_t size, unsigned seed)
{
    Bytes bytes(size);
    for (std::size_t i = 0; i < size; i++)
        bytes[i] = static_cast<unsigned char>((i * 2654435761u + seed * 40503u) >> 9);
    return bytes;
}

// Memory of the GPU, each byte of which is NOTHING.
struct Area : Buffer<unsigned char> {
    explicit Area(std::size_t size) : Buffer(size) { CHECK(hipMemset(data, NOTHING, size)); }
};

struct Stream {
    Stream() { CHECK(hipStreamCreate(&stream)); }
    ~Stream() { CHECK(hipStreamDestroy(stream)); }
    void wait() const { CHECK(hipStreamSynchronize(stream)); }
    hipStream_t stream = nullptr;
};

void line()
{
    Stream stream;
    for (std::size_t size : {1, 2, 3, 5, 255, 4096, 65537, 3 << 20}) {
        Bytes sent = pattern(size, unsigned(size)), got(size, NOTHING), want(size + 16, NOTHING);
        std::copy(sent.begin(), sent.end(), want.begin() + 7);
        Area there(size + 16), other(size + 16);
        CHECK(hipMemcpy(there.data + 7, sent.data(), size, hipMemcpyHostToDevice));
        same(there.read(), want, "a line to the GPU");
        CHECK(hipMemcpy(other.data + 7, there.data + 7, size, hipMemcpyDeviceToDevice));
        same(other.read(), want, "a line within the GPU");
        CHECK(hipMemcpy(got.data(), other.data + 7, size, hipMemcpyDefault));
        same(got, sent, "a line from the GPU");
        Area third(size + 16);
        std::fill(got.begin(), got.end(), NOTHING);
        CHECK(hipMemcpyAsync(third.data + 7, sent.data(), size, hipMemcpyHostToDevice, stream.stream));
        CHECK(hipMemcpyDtoDAsync(there.data, third.data, size + 16, stream.stream));
        CHECK(hipMemcpyAsync(got.data(), there.data + 7, size, hipMemcpyDeviceToHost, stream.stream));
        stream.wait();
        same(got, sent, "a line in a stream");
        same(there.read(), want, "around a line in a stream");
    }
}

// A rectangle within memory with a pitch, to the GPU, within it and back.
void rectangle()
{
    Stream stream;
    const std::size_t width = 301, height = 37, host_pitch = 320;
    for (bool is_async : {false, true}) {
        unsigned char *data;
        std::size_t pitch;
        CHECK(hipMallocPitch(reinterpret_cast<void **>(&data), &pitch, width, height));
        expect(pitch >= width && pitch % 4 == 0, "a pitch has room for a row");
        CHECK(hipMemset2D(data, pitch, NOTHING, pitch, height));
        Area other(host_pitch * height);
        Bytes sent = pattern(host_pitch * height, 2), got(host_pitch * height, NOTHING);
        auto copy = [&](void *to, std::size_t to_pitch, const void *from, std::size_t from_pitch, hipMemcpyKind kind) {
            if (is_async)
                CHECK(hipMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, kind, stream.stream));
            else
                CHECK(hipMemcpy2D(to, to_pitch, from, from_pitch, width, height, kind));
        };
        copy(data, pitch, sent.data(), host_pitch, hipMemcpyHostToDevice);
        copy(other.data, host_pitch, data, pitch, hipMemcpyDeviceToDevice);
        copy(got.data(), host_pitch, other.data, host_pitch, hipMemcpyDeviceToHost);
        stream.wait();
        Bytes want(host_pitch * height, NOTHING);
        for (std::size_t row = 0; row < height; row++)
            std::copy_n(sent.begin() + row * host_pitch, width, want.begin() + row * host_pitch);
        same(got, want, "a rectangle that came back");
        same(other.read(), want, "a rectangle within the GPU");
        CHECK(hipFree(data));
    }
}

// A box within a larger one, at an offset in each dimension. ROCR wants words of 4 bytes.
void box()
{
    Stream stream;
    const std::size_t x = 64, y = 9, z = 7, width = 28, height = 5, depth = 4;
    for (bool is_async : {false, true}) {
        hipPitchedPtr there;
        CHECK(hipMalloc3D(&there, make_hipExtent(x, y, z)));
        CHECK(hipMemset3D(there, NOTHING, make_hipExtent(x, y, z)));
        Bytes sent = pattern(x * y * z, 3), got(x * y * z, 0);
        auto copy = [&](hipPitchedPtr to, hipPos at, hipPitchedPtr from, hipPos of, hipExtent extent, hipMemcpyKind kind) {
            hipMemcpy3DParms how{};
            how.dstPtr = to, how.dstPos = at, how.srcPtr = from, how.srcPos = of, how.extent = extent, how.kind = kind;
            if (is_async)
                CHECK(hipMemcpy3DAsync(&how, stream.stream));
            else
                CHECK(hipMemcpy3D(&how));
        };
        auto host = [&](Bytes &bytes) { return make_hipPitchedPtr(bytes.data(), x, x, y); };
        copy(there, make_hipPos(4, 2, 1), host(sent), make_hipPos(8, 1, 2), make_hipExtent(width, height, depth),
             hipMemcpyHostToDevice);
        copy(host(got), make_hipPos(0, 0, 0), there, make_hipPos(0, 0, 0), make_hipExtent(x, y, z), hipMemcpyDeviceToHost);
        stream.wait();
        Bytes want(x * y * z, NOTHING);
        auto at = [&](std::size_t i, std::size_t j, std::size_t k) { return (k * y + j) * x + i; };
        for (std::size_t k = 0; k < depth; k++)
            for (std::size_t j = 0; j < height; j++)
                for (std::size_t i = 0; i < width; i++)
                    want[at(i + 4, j + 2, k + 1)] = sent[at(i + 8, j + 1, k + 2)];
        same(got, want, "a box in a larger one");
        CHECK(hipFree(there.ptr));
    }
}

void set()
{
    Stream stream;
    const std::size_t size = 5000;
    for (bool is_async : {false, true}) {
        Area area(size);
        auto data = area.data;
        Bytes want(size, NOTHING);
        if (is_async) {
            CHECK(hipMemsetAsync(data + 3, 0x11, 701, stream.stream));
            CHECK(hipMemsetD16Async(data + 1000, 0x2233, 77, stream.stream));
            CHECK(hipMemsetD32Async(data + 2000, 0x44556677, 55, stream.stream));
            CHECK(hipMemset2DAsync(data + 3000, 100, 0x99, 33, 9, stream.stream));
            stream.wait();
        } else {
            CHECK(hipMemset(data + 3, 0x11, 701));
            CHECK(hipMemsetD16(data + 1000, 0x2233, 77));
            CHECK(hipMemsetD32(data + 2000, 0x44556677, 55));
            CHECK(hipMemset2D(data + 3000, 100, 0x99, 33, 9));
        }
        std::fill_n(want.begin() + 3, 701, 0x11);
        for (std::size_t i = 0; i < 2 * 77; i++)
            want[1000 + i] = i % 2 == 0 ? 0x33 : 0x22;
        for (std::size_t i = 0; i < 4 * 55; i++)
            want[2000 + i] = static_cast<unsigned char>(0x44556677u >> (8 * (i % 4)));
        for (std::size_t row = 0; row < 9; row++)
            std::fill_n(want.begin() + 3000 + 100 * row, 33, 0x99);
        same(area.read(), want, "memory that was set");
    }
}

__global__ void read_symbols(int *out)
{
    if (index() < 100) {
        out[index()] = symbol[index()] + constant[index()];
        symbol[index()] = -int(index());
    }
}

void symbols()
{
    std::vector<int> first(100), second(100), want(100), got(100);
    for (int i = 0; i < 100; i++)
        first[i] = i * i, second[i] = 7 - i, want[i] = first[i] + second[i];
    CHECK(hipMemcpyToSymbol(HIP_SYMBOL(symbol), first.data(), 400, 0, hipMemcpyHostToDevice));
    CHECK(hipMemcpyToSymbol(HIP_SYMBOL(constant), second.data(), 200, 0, hipMemcpyHostToDevice));
    CHECK(hipMemcpyToSymbol(HIP_SYMBOL(constant), second.data() + 50, 200, 200, hipMemcpyHostToDevice));
    Buffer<int> out(100);
    read_symbols<<<1, 128>>>(out.data);
    same(out.read(), want, "symbols that a kernel reads");
    CHECK(hipMemcpyFromSymbol(got.data(), HIP_SYMBOL(symbol), 400, 0, hipMemcpyDeviceToHost));
    for (int i = 0; i < 100; i++)
        expect(got[i] == -i, "a symbol that a kernel wrote");
    std::size_t size = 0;
    void *address = nullptr;
    CHECK(hipGetSymbolSize(&size, HIP_SYMBOL(symbol)));
    CHECK(hipGetSymbolAddress(&address, HIP_SYMBOL(symbol)));
    expect(size == 400 && address != nullptr, "a symbol's size and address");
}

__global__ void add_to(int *data, int value, unsigned n)
{
    for (unsigned i = index(); i < n; i += gridDim.x * blockDim.x)
        data[i] += value;
}

// A kernel adds to host memory, and the CPU sees it.
void use(int *host, unsigned n, const std::string &what)
{
    int *device = nullptr;
    for (unsigned i = 0; i < n; i++)
        host[i] = int(i);
    CHECK(hipHostGetDevicePointer(reinterpret_cast<void **>(&device), host, 0));
    add_to<<<8, 256>>>(device, 1000, n);
    CHECK(hipDeviceSynchronize());
    for (unsigned i = 0; i < n; i++)
        expect(host[i] == int(i) + 1000, what + ": a kernel's addition");
    Buffer<int> copy(n);
    CHECK(hipMemcpy(copy.data, host, n * sizeof(int), hipMemcpyHostToDevice));
    std::vector<int> found = copy.read();
    expect(std::equal(found.begin(), found.end(), host), what + ": copied to the GPU");
    unsigned flags = 0;
    CHECK(hipHostGetFlags(&flags, host));
}

void host_memory()
{
    const unsigned n = 30000;
    for (unsigned flags : std::initializer_list<unsigned>{hipHostMallocDefault, hipHostMallocPortable, hipHostMallocMapped, hipHostMallocWriteCombined,
                           hipHostMallocCoherent, hipHostMallocNonCoherent, hipHostMallocPortable | hipHostMallocMapped}) {
        int *host = nullptr;
        CHECK(hipHostMalloc(reinterpret_cast<void **>(&host), n * sizeof(int), flags));
        use(host, n, "host memory with flags " + std::to_string(flags));
        CHECK(hipHostFree(host));
    }
}

// Memory of the program's own, at no page's beginning, with each flag; and twice, one after the other.
void registered()
{
    const unsigned n = 30000;
    for (unsigned flags : std::initializer_list<unsigned>{hipHostRegisterDefault, hipHostRegisterPortable, hipHostRegisterMapped,
                           hipHostRegisterPortable | hipHostRegisterMapped}) {
        std::vector<int> memory(n + 100);
        int *host = memory.data() + 33;
        for (int round = 0; round < 2; round++) {
            CHECK(hipHostRegister(host, n * sizeof(int), flags));
            use(host, n, "memory registered with flags " + std::to_string(flags));
            CHECK(hipHostUnregister(host));
        }
        for (unsigned i = 0; i < 33; i++)
            expect(memory[i] == 0 && memory[n + 33 + i] == 0, "around registered memory");
    }
    // A file's memory, which other pages follow.
    std::size_t size = 1 << 20;
    void *shared = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    expect(shared != MAP_FAILED, "shared memory of the program's");
    CHECK(hipHostRegister(shared, size, hipHostRegisterDefault));
    use(static_cast<int *>(shared), n, "shared memory that is registered");
    CHECK(hipHostUnregister(shared));
    munmap(shared, size);
}

// Both sides write in turns.
void managed()
{
    const unsigned n = 200000;
    for (unsigned flags : std::initializer_list<unsigned>{hipMemAttachGlobal, hipMemAttachHost}) {
        int *data = nullptr;
        CHECK(hipMallocManaged(reinterpret_cast<void **>(&data), n * sizeof(int), flags));
        for (unsigned i = 0; i < n; i++)
            data[i] = int(i);
        for (int round = 1; round <= 3; round++) {
            add_to<<<16, 256>>>(data, 10, n);
            CHECK(hipDeviceSynchronize());
            for (unsigned i = 0; i < n; i++) {
                expect(data[i] == int(i) + 10 * round + (round - 1), "managed memory, round " + std::to_string(round));
                data[i] += 1;
            }
        }
        CHECK(hipFree(data));
    }
}

void pointers()
{
    int device = -1;
    CHECK(hipGetDevice(&device));
    auto of = [](const void *pointer) {
        hipPointerAttribute_t about{};
        CHECK(hipPointerGetAttributes(&about, pointer));
        return about;
    };
    Buffer<int> there(1000);
    hipPointerAttribute_t about = of(there.data + 10);
    expect(about.memoryType == hipMemoryTypeDevice && about.device == device, "a pointer to the GPU's memory");
    hipDeviceptr_t base = nullptr;
    std::size_t size = 0;
    CHECK(hipMemGetAddressRange(&base, &size, there.data + 10));
    expect(base == there.data && size >= 4000, "the range that a pointer is in");
    int *host = nullptr;
    CHECK(hipHostMalloc(reinterpret_cast<void **>(&host), 4000));
    about = of(host + 10);
    expect(about.memoryType == hipMemoryTypeHost && about.hostPointer == host + 10, "a pointer to host memory");
    CHECK(hipHostFree(host));
    hipPointerAttribute_t none{};
    expect(hipPointerGetAttributes(&none, &device) != hipSuccess, "a pointer to the stack, which HIP does not know");
    std::size_t free = 0, total = 0, later = 0;
    CHECK(hipMemGetInfo(&free, &total));
    expect(free > 0 && free <= total, "free memory");
    {
        Buffer<char> large(64 << 20);
        CHECK(hipMemGetInfo(&later, &total));
        expect(later + (64 << 20) <= free, "free memory, less what was allocated");
    }
    CHECK(hipMemGetInfo(&later, &total));
    expect(later == free, "free memory, as before");
}

const Tests TESTS = {
    {"line", line},     {"rectangle", rectangle},     {"box", box},     {"set", set},           {"symbols", symbols},
    {"host", host_memory}, {"registered", registered}, {"managed", managed}, {"pointers", pointers},
};

} // namespace

int main(int argc, char **argv) { return run(TESTS, argc, argv); }
