// SPDX-License-Identifier: GPL-2.0 OR MIT
// What batch userptr is for, from end to end, in a HIP program: thousands of scattered mallocs become one contiguous range of GPU addresses by
// one call of the driver's, and kernels work on it while the memory below changes. Pages are discarded, replaced and paged out, also while a
// kernel runs, and the GPU's own memory is asked for more than it has. Every byte is compared with what the CPU computes.
//
//        hip_batch PIECES           the allocation's flag USERPTR_BATCH (posts v3 and v4)
//        hip_batch PIECES command   the command of its own (post v2)
//
// It says what it did, and "ok" at the end.

#include "check.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <random>
#include <vector>

namespace {

constexpr std::size_t PAGE = 4096, WORDS = PAGE / 8;
constexpr unsigned THREADS = 256;

// From linux/kfd_ioctl.h, and from the posts.
struct Alloc {
    std::uint64_t va, size, handle, mmap_offset;
    std::uint32_t gpu_id, flags;
};
struct AllocBatch {
    std::uint64_t va, size, handle, ranges;
    std::uint32_t count, gpu_id, flags, pad;
};
struct Map {
    std::uint64_t handle, gpu_ids;
    std::uint32_t count, done;
};
struct Events {
    std::uint32_t gpu_id, fd;
};
struct Range {
    std::uint64_t start, size;
};
struct RangesHeader {
    std::uint32_t count, reserved;
};
constexpr unsigned long ALLOC = _IOWR('K', 0x16, Alloc), ALLOC_BATCH = _IOWR('K', 0x28, AllocBatch), FREE = _IOW('K', 0x17, std::uint64_t),
                        MAP = _IOWR('K', 0x18, Map), UNMAP = _IOWR('K', 0x19, Map), SMI_EVENTS = _IOWR('K', 0x1f, Events);
constexpr std::uint32_t USERPTR = 1u << 2, USERPTR_BATCH = 1u << 22, NO_SUBSTITUTE = 1u << 28, WRITABLE = 1u << 31;
// Events: memory has moved, the process's queues were evicted, and restored.
constexpr unsigned MIGRATE_END = 6, QUEUE_EVICTION = 9, QUEUE_RESTORE = 10;
// How the line of a move ends that made room in the GPU's memory, and did not fail.
constexpr const char *FOR_ROOM = " 3 0";

void require(bool right, const std::string &what)
{
    if (!right)
        fail(what);
}

// As `require`, of what the kernel says in errno.
void call(int result, const char *what)
{
    if (result != 0)
        fail(std::string(what) + ": " + std::strerror(errno));
}

std::vector<std::uint32_t> gpu_ids()
{
    std::vector<std::uint32_t> ids;
    for (unsigned node = 0;; node++) {
        std::ifstream file("/sys/devices/virtual/kfd/kfd/topology/nodes/" + std::to_string(node) + "/gpu_id");
        std::uint32_t id = 0;
        if (!(file >> id))
            return ids;
        if (id != 0)
            ids.push_back(id);
    }
}

// A number for each page, in which every bit of it counts where it is.
__global__ void sums(const std::uint64_t *words, unsigned long long *out)
{
    const std::uint64_t *page = words + blockIdx.x * WORDS;
    unsigned long long sum = 0;
    for (unsigned i = threadIdx.x; i < WORDS; i += blockDim.x)
        sum += (page[i] ^ (page[i] >> 29)) * (2 * i + 1);
    atomicAdd(&out[blockIdx.x], sum);
}

std::uint64_t sum_of(const std::uint64_t *page)
{
    std::uint64_t sum = 0;
    for (unsigned i = 0; i < WORDS; i++)
        sum += (page[i] ^ (page[i] >> 29)) * (2 * i + 1);
    return sum;
}

// Every word is changed `rounds` times, each time to something else.
__global__ void change(std::uint64_t *words, std::uint64_t count, unsigned rounds)
{
    std::uint64_t stride = std::uint64_t(gridDim.x) * blockDim.x;
    for (unsigned round = 0; round < rounds; round++)
        for (std::uint64_t i = std::uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride)
            words[i] = words[i] * 6364136223846793005u + (i ^ round);
}

struct Piece {
    std::uint64_t *memory;
    std::size_t pages;
    // Where it begins in the range, in pages.
    std::size_t at;

    std::size_t words() const { return pages * WORDS; }
    std::size_t bytes() const { return pages * PAGE; }
};

// Mostly of a few pages, some of megabytes, in no order.
std::vector<Piece> scattered(std::size_t count, std::mt19937_64 &random)
{
    std::vector<Piece> pieces;
    std::vector<void *> between;
    for (std::size_t i = 0; i < count; i++) {
        std::size_t pages = i % 1000 == 7 ? 256 + random() % 256 : i % 50 == 3 ? 16 + random() % 48 : 1 + random() % 8;
        void *memory = nullptr;
        require(posix_memalign(&memory, PAGE, pages * PAGE) == 0, "malloc");
        pieces.push_back({static_cast<std::uint64_t *>(memory), pages, 0});
        between.push_back(std::malloc(1 + random() % 3000));
    }
    std::for_each(between.begin(), between.end(), std::free);
    std::shuffle(pieces.begin(), pieces.end(), random);
    // So that it shows when the second begins too early.
    std::iter_swap(pieces.begin(), std::find_if(pieces.begin(), pieces.end(), [](const Piece &piece) { return piece.pages > 1; }));
    std::size_t at = 0;
    for (Piece &piece : pieces) {
        piece.at = at;
        at += piece.pages;
    }
    return pieces;
}

// How often something happened to the process.
struct Seen {
    unsigned evicted = 0, restored = 0, made_room = 0;
};

// What the driver has for the program beside the runtime.
class Driver {
public:
    explicit Driver(std::vector<std::uint32_t> gpus) : file(open("/dev/kfd", O_RDWR | O_CLOEXEC)), gpus(std::move(gpus))
    {
        require(file >= 0, "/dev/kfd");
        Events events = {this->gpus.at(0), 0};
        call(ioctl(file, SMI_EVENTS, &events), "SMI_EVENTS");
        stream = static_cast<int>(events.fd);
        std::uint64_t mask = 1ull << (QUEUE_EVICTION - 1) | 1ull << (QUEUE_RESTORE - 1) | 1ull << (MIGRATE_END - 1);
        require(write(stream, &mask, sizeof mask) == sizeof mask, "the mask of events");
    }

    // One contiguous range of all pieces, in one call.
    std::uint64_t *batch(const std::vector<Piece> &pieces, bool by_command)
    {
        std::vector<Range> ranges;
        std::uint64_t bytes = 0;
        for (const Piece &piece : pieces) {
            ranges.push_back({reinterpret_cast<std::uint64_t>(piece.memory), piece.bytes()});
            bytes += piece.bytes();
        }
        // Addresses that nobody else has are the GPU's.
        void *free = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        require(free != MAP_FAILED, "addresses");
        auto va = reinterpret_cast<std::uint64_t>(free);
        auto count = static_cast<std::uint32_t>(ranges.size());
        std::uint32_t flags = USERPTR | NO_SUBSTITUTE | WRITABLE;
        if (by_command) {
            AllocBatch args = {va, bytes, 0, reinterpret_cast<std::uint64_t>(ranges.data()), count, gpus[0], flags, 0};
            call(ioctl(file, ALLOC_BATCH, &args), "ALLOC_MEMORY_OF_GPU_BATCH");
            handle = args.handle;
        } else {
            std::vector<char> list(sizeof(RangesHeader) + count * sizeof(Range));
            RangesHeader header = {count, 0};
            std::memcpy(list.data(), &header, sizeof header);
            std::memcpy(list.data() + sizeof header, ranges.data(), count * sizeof(Range));
            Alloc args = {va, bytes, 0, reinterpret_cast<std::uint64_t>(list.data()), gpus[0], flags | USERPTR_BATCH};
            call(ioctl(file, ALLOC, &args), "ALLOC_MEMORY_OF_GPU with USERPTR_BATCH");
            handle = args.handle;
        }
        Map args = map();
        call(ioctl(file, MAP, &args), "MAP_MEMORY_TO_GPU");
        require(args.done == gpus.size(), "it is mapped on each GPU");
        return static_cast<std::uint64_t *>(free);
    }

    void end_batch()
    {
        Map args = map();
        call(ioctl(file, UNMAP, &args), "UNMAP_MEMORY_FROM_GPU");
        call(ioctl(file, FREE, &handle), "FREE_MEMORY_OF_GPU");
    }

    // What has happened since it was last asked.
    Seen events()
    {
        pollfd ready = {stream, POLLIN, 0};
        while (poll(&ready, 1, 0) > 0) {
            char text[4096];
            ssize_t bytes = read(stream, text, sizeof text);
            if (bytes <= 0)
                break;
            said.append(text, static_cast<std::size_t>(bytes));
        }
        Seen seen;
        for (std::size_t end; (end = said.find('\n')) != std::string::npos; said.erase(0, end + 1)) {
            const std::string line = said.substr(0, end);
            const unsigned long event = std::strtoul(line.c_str(), nullptr, 16);
            seen.evicted += event == QUEUE_EVICTION;
            seen.restored += event == QUEUE_RESTORE;
            seen.made_room += event == MIGRATE_END && line.size() > 4 && line.compare(line.size() - 4, 4, FOR_ROOM) == 0;
        }
        return seen;
    }

private:
    Map map() { return {handle, reinterpret_cast<std::uint64_t>(gpus.data()), static_cast<std::uint32_t>(gpus.size()), 0}; }

    int file, stream = -1;
    std::vector<std::uint32_t> gpus;
    std::uint64_t handle = 0;
    std::string said;
};

// The pieces, what the CPU expects in them, and the GPUs' view of them.
class Scene {
public:
    Scene(Driver &driver, std::vector<Piece> all, bool by_command) : driver(driver), pieces(std::move(all))
    {
        const Piece &last = pieces.back();
        pages = last.at + last.pages;
        for (Piece &piece : pieces)
            fill(piece);
        range = driver.batch(pieces, by_command);
        CHECK(hipMalloc(&device_sums, pages * sizeof *device_sums));
    }

    // The CPU puts something of its own into a piece.
    void fill(const Piece &piece)
    {
        for (std::size_t i = 0; i < piece.words(); i++)
            piece.memory[i] = random();
    }

    // The GPU sees what the CPU sees, in every page.
    void read(const std::string &when)
    {
        CHECK(hipMemset(device_sums, 0, pages * sizeof *device_sums));
        sums<<<dim3(pages), dim3(THREADS)>>>(range, device_sums);
        CHECK(hipGetLastError());
        std::vector<std::uint64_t> seen(pages);
        CHECK(hipMemcpy(seen.data(), device_sums, pages * sizeof *device_sums, hipMemcpyDeviceToHost));
        for (const Piece &piece : pieces)
            for (std::size_t page = 0; page < piece.pages; page++)
                require(seen[piece.at + page] == sum_of(piece.memory + page * WORDS),
                        when + ": the GPU reads something else in page " + std::to_string(page) + " of " + std::to_string(piece.pages) +
                            " at page " + std::to_string(piece.at) + " of the range");
    }

    // A kernel changes every word of the range; `meanwhile` runs beside it.
    template <typename F> void write(const std::string &when, unsigned rounds, F meanwhile)
    {
        std::vector<std::vector<std::uint64_t>> expected;
        for (const Piece &piece : pieces) {
            std::vector<std::uint64_t> words(piece.memory, piece.memory + piece.words());
            for (unsigned round = 0; round < rounds; round++)
                for (std::size_t i = 0; i < words.size(); i++)
                    words[i] = words[i] * 6364136223846793005u + ((piece.at * WORDS + i) ^ round);
            expected.push_back(std::move(words));
        }
        change<<<dim3(64), dim3(THREADS)>>>(range, pages * WORDS, rounds);
        CHECK(hipGetLastError());
        meanwhile();
        CHECK(hipDeviceSynchronize());
        for (std::size_t i = 0; i < pieces.size(); i++)
            require(std::memcmp(expected[i].data(), pieces[i].memory, pieces[i].bytes()) == 0,
                    when + ": what the GPU wrote is not in piece " + std::to_string(i) + " of " + std::to_string(pieces[i].pages) + " pages");
    }

    // Says a line. Where the queues must have been evicted and restored meanwhile, they were.
    void done(const char *what, bool evicts)
    {
        std::string when = what;
        Seen seen = driver.events();
        require(!evicts || seen.evicted != 0, when + ": the queues were never evicted");
        require(!evicts || seen.restored != 0, when + ": the queues were never restored");
        std::printf("%s: right%s\n", what, evicts ? ", evicted and restored" : "");
    }

    Driver &driver;
    std::vector<Piece> pieces;
    std::size_t pages;
    std::uint64_t *range;
    std::mt19937_64 random{11};

private:
    unsigned long long *device_sums = nullptr;
};

void nothing() {}

// Pages out what the kernel works on, again and again, until it has ended.
void page_out(const std::vector<Piece> &pieces)
{
    for (std::size_t i = 0; hipStreamQuery(nullptr) == hipErrorNotReady; i++) {
        const Piece &piece = pieces[i * 37 % pieces.size()];
        call(madvise(piece.memory, piece.bytes(), MADV_PAGEOUT), "MADV_PAGEOUT");
        usleep(20000);
    }
}

// More memory than the GPU has: what is managed has to leave it.
void oversubscribe(Scene &scene)
{
    constexpr std::size_t BYTES = 64 << 20, STEP = 16 << 20, RUNTIMES_OWN = 32 << 20;
    std::size_t free = 0, total = 0;
    CHECK(hipMemGetInfo(&free, &total));
    std::uint64_t *managed = nullptr;
    CHECK(hipMallocManaged(&managed, BYTES));
    for (std::size_t i = 0; i < BYTES / 8; i++)
        managed[i] = i * 0x9e3779b97f4a7c15u;
    CHECK(hipMemPrefetchAsync(managed, BYTES, 0, nullptr));
    CHECK(hipDeviceSynchronize());
    std::vector<void *> taken;
    while ((taken.size() + 1) * STEP + RUNTIMES_OWN <= free) {
        taken.push_back(nullptr);
        CHECK(hipMalloc(&taken.back(), STEP));
    }
    require(scene.driver.events().made_room != 0, "nothing has left the GPU's memory for what was allocated there");
    scene.write("while the GPU's memory is taken", 1, nothing);
    scene.read("while the GPU's memory is taken");
    for (std::size_t i = 0; i < BYTES / 8; i++)
        require(managed[i] == i * 0x9e3779b97f4a7c15u, "managed memory is not what it was");
    for (void *memory : taken)
        CHECK(hipFree(memory));
    CHECK(hipFree(managed));
}

} // namespace

int main(int argc, char **argv)
{
    // What was right is said also by a program that a fault ends.
    std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
    std::size_t count = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 4000;
    bool by_command = argc > 2 && std::strcmp(argv[2], "command") == 0;
    require(count >= 100, "usage: hip_batch PIECES [command], of at least 100 pieces");
    int gpus = 0;
    CHECK(hipGetDeviceCount(&gpus));
    CHECK(hipSetDevice(0));
    std::mt19937_64 random(7);
    Driver driver(gpu_ids());
    Scene scene(driver, scattered(count, random), by_command);
    std::vector<Piece> &pieces = scene.pieces;
    std::printf("%zu pieces of %zu pages are one range on %d GPUs, by %s\n", pieces.size(), scene.pages, gpus,
                by_command ? "the command" : "the flag");
    driver.events();

    scene.read("as registered");
    scene.write("as registered", 1, nothing);
    scene.done("as registered", false);

    for (std::size_t i = 0; i < pieces.size(); i += 7) {
        call(madvise(pieces[i].memory, pieces[i].bytes(), MADV_DONTNEED), "MADV_DONTNEED");
        if (i % 2 == 0)
            scene.fill(pieces[i]);
    }
    scene.read("after a discard");
    scene.write("after a discard", 1, nothing);
    scene.done("discarded", true);

    for (std::size_t i = 3; i < pieces.size(); i += 11) {
        void *again = mmap(pieces[i].memory, pieces[i].bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        require(again == pieces[i].memory, "other memory in the place of a piece");
        if (i % 2 == 0)
            scene.fill(pieces[i]);
    }
    scene.read("with other memory in the place of pieces");
    scene.write("with other memory in the place of pieces", 1, nothing);
    scene.done("replaced", true);

    scene.write("while pages go out", 24, [&] { page_out(pieces); });
    scene.read("after pages went out");
    scene.done("paged out while a kernel runs", true);

    oversubscribe(scene);
    scene.done("oversubscribed", false);

    driver.end_batch();
    for (const Piece &piece : pieces)
        std::free(piece.memory);
    std::printf("ok\n");
    return 0;
}
