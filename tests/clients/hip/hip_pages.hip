// SPDX-License-Identifier: GPL-2.0 OR MIT
// Pages that go and come back while a kernel uses them. The kernel does not end: it reads a word of each page, and answers with what it finds.
// The program takes a page away, writes the next value to the one that comes in its place, and waits for the answer: it comes only if the GPU
// has followed to the new page.
//
//        hip_pages evictions [ROUNDS [SECONDS]]     registered memory, which the kernel reads all the while: an eviction of its queue a round
//        hip_pages retries [ROUNDS [SECONDS]]       any memory, for GPUs that retry their faults (HSA_XNACK=1): a fault a round. The kernel
//                                                   reads when it is asked to, as the driver moves the page to the GPU then
//        hip_pages apart [ROUNDS [SECONDS]]         the same with pages that have no neighbours
//
// SECONDS is how long an answer may take. Events are KFD's own (SMI), from outside of the runtime.

#include "tests.h"

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace {

constexpr unsigned PAGE = 4096, WORDS = PAGE / sizeof(unsigned), PAGES = 64, BYTES = PAGES * PAGE, STOP = ~0u;
// Pages from one that is watched to the next. Between those that have no neighbours is one that nobody can read.
unsigned step = 1;
auto patience = std::chrono::seconds(60);

// From linux/kfd_ioctl.h, which needs libdrm's headers.
struct smi_events {
    uint32_t gpuid, anon_fd;
};
constexpr unsigned long SMI_EVENTS = _IOWR('K', 0x1f, smi_events);
constexpr unsigned PAGE_FAULT_START = 7, QUEUE_EVICTION = 9, QUEUE_RESTORE = 10;

// The events of the first GPU. They are of the process that the runtime is to KFD, and so its descriptor asks for them.
class Events {
public:
    Events()
    {
        smi_events wanted{};
        std::ifstream("/sys/class/kfd/kfd/topology/nodes/1/gpu_id") >> wanted.gpuid;
        int kfd = 3;
        while (kfd < 1024 && ioctl(kfd, SMI_EVENTS, &wanted) != 0)
            kfd++;
        expect(kfd < 1024, "no descriptor gives events of GPU " + std::to_string(wanted.gpuid));
        file = int(wanted.anon_fd);
        const auto bit = [](unsigned event) { return uint64_t(1) << (event - 1); };
        const uint64_t mask = bit(PAGE_FAULT_START) | bit(QUEUE_EVICTION) | bit(QUEUE_RESTORE);
        expect(fcntl(file, F_SETFL, O_NONBLOCK) == 0 && write(file, &mask, sizeof mask) == sizeof mask, "events are selected");
    }

    // Adds up what has come. Lines begin with the event's number, in hexadecimal; reads end between lines.
    void read()
    {
        char text[4096];
        ssize_t length;
        while ((length = ::read(file, text, sizeof text - 1)) > 0) {
            text[length] = 0;
            for (char *line = std::strtok(text, "\n"); line; line = std::strtok(nullptr, "\n"))
                counts[std::strtoul(line, nullptr, 16)]++;
        }
        expect(length == 0 || errno == EAGAIN, "events are read");
    }

    std::map<unsigned long, unsigned> counts;

private:
    int file;
};

// Reads a page when the word at its gate changes, and answers with both words. A page can be its own gate.
__global__ void watch(unsigned *gates, unsigned gate_words, unsigned *pages, unsigned words, uint64_t *answers)
{
    unsigned *gate = gates + index() * gate_words, *page = pages + index() * words, last = 0, now;
    while ((now = __hip_atomic_load(gate, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM)) != STOP) {
        if (now != last) {
            unsigned value = __hip_atomic_load(page, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
            __hip_atomic_store(answers + index(), uint64_t(now) << 32 | value, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
        }
        last = now;
    }
}

// Words that both use where they are.
template <typename T> T *shared_words()
{
    T *words = nullptr;
    CHECK(hipHostMalloc(reinterpret_cast<void **>(&words), PAGES * sizeof *words, hipHostMallocCoherent | hipHostMallocMapped));
    std::memset(words, 0, PAGES * sizeof *words);
    return words;
}

unsigned *map()
{
    void *memory = mmap(nullptr, step * BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    expect(memory != MAP_FAILED, "memory is mapped");
    for (unsigned page = 1; page < PAGES && step > 1; page++)
        expect(mprotect(static_cast<char *>(memory) + (page * step - 1) * PAGE, PAGE, PROT_NONE) == 0, "pages are kept apart");
    return static_cast<unsigned *>(memory);
}

// What the kernel found in a page when its gate was `gate`.
unsigned answered(const uint64_t *answer, unsigned gate)
{
    const auto end = std::chrono::steady_clock::now() + patience;
    uint64_t now;
    while ((now = __atomic_load_n(answer, __ATOMIC_ACQUIRE)) >> 32 != gate)
        expect(std::chrono::steady_clock::now() < end, "the kernel answers " + std::to_string(gate) + " and not " + std::to_string(now >> 32));
    return unsigned(now);
}

// The rounds, with pages that the GPU knows at `seen`. After each one `what` events must be more. If pages are `gated`, the kernel is asked to
// read them; otherwise it reads without end.
unsigned rounds(unsigned count, unsigned *memory, unsigned *seen, bool gated, unsigned what)
{
    Events events;
    unsigned good = 0, old = 0, *asked = gated ? shared_words<unsigned>() : nullptr;
    uint64_t *answers = shared_words<uint64_t>();
    auto ask = [&](unsigned page, unsigned number) {
        __atomic_store_n(asked + page, number, __ATOMIC_RELEASE);
        return answered(answers + page, number);
    };
    auto set = [&](unsigned page, unsigned value) {
        __atomic_store_n(memory + page * step * WORDS, value, __ATOMIC_RELEASE);
        const unsigned found = gated ? ask(page, value) : answered(answers + page, value);
        expect(found == value, "the kernel finds " + std::to_string(value) + " and not " + std::to_string(found));
    };
    for (unsigned page = 0; page < PAGES; page++)
        memory[page * step * WORDS] = 1 + page;
    watch<<<1, PAGES>>>(gated ? asked : seen, gated ? 1 : step * WORDS, seen, step * WORDS, answers);
    CHECK(hipGetLastError());
    for (unsigned page = 0; page < PAGES; page++)
        set(page, 1 + page);
    for (unsigned round = 0; round < count; round++) {
        events.read();
        const unsigned before = events.counts[what], page = round % PAGES;
        unsigned *word = memory + page * step * WORDS;
        // Another page comes in its place, which is empty at first.
        expect(madvise(word, PAGE, MADV_DONTNEED) == 0, "a page is given up");
        old += (gated ? ask(page, 500000 + round) : __atomic_load_n(word, __ATOMIC_RELAXED)) != 0;
        set(page, 1000 + round);
        events.read();
        good += events.counts[what] > before;
    }
    for (unsigned page = 0; page < PAGES; page++)
        __atomic_store_n(gated ? asked + page : memory + page * step * WORDS, STOP, __ATOMIC_RELEASE);
    CHECK(hipDeviceSynchronize());
    events.read();
    std::printf("%u of %u new pages had the old contents\n", old, count);
    std::printf("%u evictions, %u restores, %u page faults\n", events.counts[QUEUE_EVICTION], events.counts[QUEUE_RESTORE],
                events.counts[PAGE_FAULT_START]);
    CHECK(hipHostFree(answers));
    if (gated)
        CHECK(hipHostFree(asked));
    return good;
}

void evictions(unsigned count)
{
    unsigned *memory = map(), *seen = nullptr;
    CHECK(hipHostRegister(memory, BYTES, hipHostRegisterMapped));
    CHECK(hipHostGetDevicePointer(reinterpret_cast<void **>(&seen), memory, 0));
    const unsigned good = rounds(count, memory, seen, false, QUEUE_EVICTION);
    std::printf("%u of %u pages were followed by an eviction\n", good, count);
    expect(good == count, "a page that goes evicts the queues");
    CHECK(hipHostUnregister(memory));
    munmap(memory, BYTES);
}

__global__ void add(unsigned *memory, unsigned words)
{
    for (unsigned i = threadIdx.x; i < WORDS; i += blockDim.x)
        memory[blockIdx.x * words + i] += blockIdx.x + i;
}

void retries(unsigned count)
{
    expect(attribute(hipDeviceAttributePageableMemoryAccess) == 1, "the GPU retries its faults (HSA_XNACK=1)");
    // Memory that nobody has touched, and memory that the processor has read.
    unsigned *memory = map();
    for (unsigned times = 1; times <= 2; times++) {
        add<<<PAGES, 64>>>(memory, step * WORDS);
        CHECK(hipDeviceSynchronize());
        for (unsigned page = 0; page < PAGES; page++)
            for (unsigned i = 0; i < WORDS; i++)
                expect(memory[page * step * WORDS + i] == times * (page + i), "the GPU adds to what is there");
    }
    const unsigned good = rounds(count, memory, memory, true, PAGE_FAULT_START);
    std::printf("%u of %u pages were followed by a fault\n", good, count);
    expect(good == count, "a page that goes makes the GPU fault");
    munmap(memory, step * BYTES);
}

} // namespace

int main(int argc, char **argv)
{
    const std::string name = argc > 1 ? argv[1] : "";
    const unsigned count = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 100;
    if (argc > 3)
        patience = std::chrono::seconds(std::strtoul(argv[3], nullptr, 10));
    // Lines come as they are printed, also from a program that does not come to its end.
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    if (name != "evictions" && name != "retries" && name != "apart")
        fail("usage: hip_pages evictions|retries|apart [ROUNDS [SECONDS]]");
    if (name == "apart")
        step = 2;
    name == "evictions" ? evictions(count) : retries(count);
    std::printf("ok\n");
    return 0;
}
