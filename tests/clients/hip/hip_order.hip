// SPDX-License-Identifier: GPL-2.0 OR MIT
// A HIP program about the order of work: streams, events, functions of the host, graphs, and several GPUs. It says "right"
// after each test and "ok" at the end.
//
//        hip_order [NAME...]
//
// Each test makes work whose result depends on its order, and none waits for a time.

#include "tests.h"

#include <atomic>
#include <thread>

namespace {

constexpr unsigned N = 20000;

// Not commutative, so that another order is another result.
__host__ __device__ int step(int value, int with) { return value * 3 + with; }

__global__ void apply(int *data, int with)
{
    for (unsigned i = index(); i < N; i += gridDim.x * blockDim.x)
        data[i] = step(data[i], with);
}

// Holds a stream until the host writes the word.
__global__ void hold(volatile int *word)
{
    while (*word == 0)
        __builtin_amdgcn_s_sleep(8);
}

void launch(int *data, int with, hipStream_t stream) { apply<<<20, 256, 0, stream>>>(data, with); }

void all(const Buffer<int> &data, int want, const std::string &what) { same(data.read(), std::vector<int>(N, want), what); }

struct Stream {
    explicit Stream(unsigned flags = hipStreamDefault) { CHECK(hipStreamCreateWithFlags(&stream, flags)); }
    ~Stream() { CHECK(hipStreamDestroy(stream)); }
    void wait() const { CHECK(hipStreamSynchronize(stream)); }
    hipStream_t stream = nullptr;
};

struct Event {
    explicit Event(unsigned flags = hipEventDefault) { CHECK(hipEventCreateWithFlags(&event, flags)); }
    ~Event() { CHECK(hipEventDestroy(event)); }
    hipEvent_t event = nullptr;
};

// A word that the host writes and a kernel waits for.
struct Gate {
    Gate() { CHECK(hipHostMalloc(reinterpret_cast<void **>(&word), sizeof(int), hipHostMallocCoherent)), *word = 0; }
    ~Gate() { CHECK(hipHostFree(word)); }
    void open() const { *static_cast<volatile int *>(word) = 1; }
    int *word = nullptr;
};

void streams()
{
    Stream one, two(hipStreamNonBlocking);
    unsigned flags = 0;
    int least = 0, greatest = 0, priority = 0;
    CHECK(hipStreamGetFlags(two.stream, &flags));
    expect(flags == hipStreamNonBlocking, "a stream's flags");
    CHECK(hipDeviceGetStreamPriorityRange(&least, &greatest));
    expect(greatest <= least, "a range of priorities");
    hipStream_t high;
    CHECK(hipStreamCreateWithPriority(&high, hipStreamDefault, greatest));
    CHECK(hipStreamGetPriority(high, &priority));
    expect(priority == greatest, "a stream's priority");
    CHECK(hipStreamDestroy(high));

    // Within a stream, in order; a second one is not kept waiting.
    Gate gate;
    Buffer<int> first(N), second(N);
    CHECK(hipDeviceSynchronize());
    hold<<<1, 1, 0, one.stream>>>(gate.word);
    launch(first.data, 1, one.stream);
    launch(first.data, 2, one.stream);
    launch(second.data, 5, two.stream);
    two.wait();
    expect(hipStreamQuery(one.stream) == hipErrorNotReady, "a stream that a kernel holds is not ready");
    expect(hipStreamQuery(two.stream) == hipSuccess, "a stream beside it is ready");
    gate.open();
    one.wait();
    all(first, step(step(0, 1), 2), "two kernels of a stream");
    all(second, 5, "a kernel of another stream");
    // The stream that has no name waits for those that block.
    launch(first.data, 7, one.stream);
    launch(first.data, 9, nullptr);
    launch(first.data, 4, one.stream);
    all(first, step(step(step(step(step(0, 1), 2), 7), 9), 4), "the stream without a name, between two of another");
}

void events()
{
    Stream one(hipStreamNonBlocking), two(hipStreamNonBlocking);
    Event begin, end, ordered(hipEventDisableTiming);
    Gate gate;
    Buffer<int> data(N);
    CHECK(hipDeviceSynchronize());
    CHECK(hipEventRecord(begin.event, one.stream));
    hold<<<1, 1, 0, one.stream>>>(gate.word);
    launch(data.data, 1, one.stream);
    CHECK(hipEventRecord(ordered.event, one.stream));
    CHECK(hipStreamWaitEvent(two.stream, ordered.event, 0));
    launch(data.data, 2, two.stream);
    CHECK(hipEventRecord(end.event, two.stream));
    expect(hipEventQuery(end.event) == hipErrorNotReady, "an event behind a held stream is not ready");
    gate.open();
    CHECK(hipEventSynchronize(end.event));
    expect(hipEventQuery(ordered.event) == hipSuccess, "an event before one that was waited for is ready");
    all(data, step(step(0, 1), 2), "a stream that waits for another one's event");
    float took = -1;
    CHECK(hipEventElapsedTime(&took, begin.event, end.event));
    expect(took >= 0, "no time is negative");
    expect(hipEventElapsedTime(&took, begin.event, ordered.event) != hipSuccess, "an event without a time has none");
}

// Launches a graph so many times, each after the other.
void launch_graph(hipGraph_t graph, int times)
{
    Stream stream;
    hipGraphExec_t ready;
    CHECK(hipGraphInstantiate(&ready, graph, nullptr, nullptr, 0));
    for (int i = 0; i < times; i++)
        CHECK(hipGraphLaunch(ready, stream.stream));
    stream.wait();
    CHECK(hipGraphExecDestroy(ready));
}

// What functions of the host saw.
struct Seen {
    explicit Seen(int *host) : host(host) {}
    int *host;
    std::atomic<int> calls{0}, first{0};
};

void see(Seen *seen)
{
    seen->first = seen->host[0];
    seen->calls++;
}

void functions()
{
    Stream one;
    Buffer<int> data(N);
    int *host = nullptr;
    CHECK(hipHostMalloc(reinterpret_cast<void **>(&host), N * sizeof(int)));
    Seen seen(host);
    launch(data.data, 6, one.stream);
    CHECK(hipMemcpyAsync(host, data.data, N * sizeof(int), hipMemcpyDeviceToHost, one.stream));
    CHECK(hipStreamAddCallback(
        one.stream,
        [](hipStream_t, hipError_t status, void *seen) {
            if (status == hipSuccess)
                see(static_cast<Seen *>(seen));
        },
        &seen, 0));
    one.wait();
    // The function may still be on its way when the stream is empty.
    while (seen.calls == 0)
        std::this_thread::yield();
    expect(seen.first == 6, "a callback sees what was before it in its stream");
    // The same as a node of a graph, between a copy and the next launch.
    hipGraph_t graph;
    hipGraphNode_t copy, call;
    CHECK(hipGraphCreate(&graph, 0));
    CHECK(hipGraphAddMemcpyNode1D(&copy, graph, nullptr, 0, host, data.data, N * sizeof(int), hipMemcpyDeviceToHost));
    hipHostNodeParams how{};
    how.fn = [](void *seen) { see(static_cast<Seen *>(seen)); }, how.userData = &seen;
    CHECK(hipGraphAddHostNode(&call, graph, &copy, 1, &how));
    launch(data.data, 1, one.stream);
    one.wait();
    launch_graph(graph, 1);
    expect(seen.calls == 2 && seen.first == step(6, 1), "a function of the host in a graph, after a copy");
    CHECK(hipGraphDestroy(graph));
    CHECK(hipHostFree(host));
}

void captured()
{
    Stream one(hipStreamNonBlocking), two(hipStreamNonBlocking);
    Event forked(hipEventDisableTiming), joined(hipEventDisableTiming);
    Buffer<int> first(N), second(N);
    CHECK(hipDeviceSynchronize());
    hipGraph_t graph;
    hipStreamCaptureStatus status;
    CHECK(hipStreamBeginCapture(one.stream, hipStreamCaptureModeGlobal));
    CHECK(hipStreamIsCapturing(one.stream, &status));
    expect(status == hipStreamCaptureStatusActive, "a stream that is captured");
    launch(first.data, 1, one.stream);
    CHECK(hipEventRecord(forked.event, one.stream));
    CHECK(hipStreamWaitEvent(two.stream, forked.event, 0));
    launch(second.data, 2, two.stream);
    CHECK(hipEventRecord(joined.event, two.stream));
    CHECK(hipStreamWaitEvent(one.stream, joined.event, 0));
    CHECK(hipMemcpyAsync(first.data, second.data, sizeof(int), hipMemcpyDeviceToDevice, one.stream));
    CHECK(hipStreamEndCapture(one.stream, &graph));
    all(first, 0, "what is captured does not run");
    std::size_t nodes = 0;
    CHECK(hipGraphGetNodes(graph, nullptr, &nodes));
    expect(nodes >= 3, "a captured graph has its nodes");
    launch_graph(graph, 3);
    int once = step(0, 1), thrice = step(step(once, 1), 1);
    int copied = step(step(step(0, 2), 2), 2);
    std::vector<int> want(N, thrice);
    want[0] = copied;
    same(first.read(), want, "a captured graph, launched three times");
    all(second, copied, "a captured graph's other branch");
    CHECK(hipGraphDestroy(graph));
}

void built()
{
    Buffer<int> data(N);
    std::vector<int> host(N, -1);
    hipGraph_t graph;
    hipGraphNode_t set, first, second, copy;
    CHECK(hipGraphCreate(&graph, 0));
    hipMemsetParams zero{};
    zero.dst = data.data, zero.elementSize = 4, zero.width = N, zero.height = 1, zero.pitch = N * 4, zero.value = 2;
    CHECK(hipGraphAddMemsetNode(&set, graph, nullptr, 0, &zero));
    int with[] = {1, 8};
    auto node = [&](hipGraphNode_t *made, int *with) {
        void *arguments[] = {&data.data, with};
        hipKernelNodeParams how{};
        how.func = reinterpret_cast<void *>(apply), how.gridDim = dim3(20), how.blockDim = dim3(256);
        how.kernelParams = arguments;
        CHECK(hipGraphAddKernelNode(made, graph, nullptr, 0, &how));
    };
    node(&first, &with[0]);
    node(&second, &with[1]);
    CHECK(hipGraphAddMemcpyNode1D(&copy, graph, nullptr, 0, host.data(), data.data, N * sizeof(int), hipMemcpyDeviceToHost));
    hipGraphNode_t from[] = {set, first, second}, to[] = {first, second, copy};
    CHECK(hipGraphAddDependencies(graph, from, to, 3));
    std::size_t roots = 0, edges = 0;
    CHECK(hipGraphGetRootNodes(graph, nullptr, &roots));
    CHECK(hipGraphGetEdges(graph, nullptr, nullptr, &edges));
    expect(roots == 1 && edges == 3, "a graph's root and edges");
    launch_graph(graph, 2);
    same(host, std::vector<int>(N, step(step(2, 1), 8)), "a graph whose nodes were made one by one");
    CHECK(hipGraphDestroy(graph));
}

// Each thread has a stream and memory of its own.
void threads()
{
    std::vector<std::thread> many;
    std::atomic<int> right{0};
    for (int t = 0; t < 4; t++)
        many.emplace_back([t, &right] {
            Stream stream(hipStreamNonBlocking);
            Buffer<int> data(N);
            CHECK(hipDeviceSynchronize());
            int want = 0;
            for (int i = 0; i < 20; i++) {
                launch(data.data, t + i, stream.stream);
                want = step(want, t + i);
            }
            stream.wait();
            all(data, want, "twenty kernels of a thread's stream");
            right++;
        });
    for (auto &thread : many)
        thread.join();
    expect(right == 4, "four threads");
}

// Runs with as many GPUs as there are; one is enough for the first half.
void devices()
{
    int gpus = 0;
    CHECK(hipGetDeviceCount(&gpus));
    for (int gpu = 0; gpu < gpus; gpu++) {
        hipDeviceProp_t about;
        char bus[32];
        int found = -1;
        CHECK(hipSetDevice(gpu));
        CHECK(hipGetDeviceProperties(&about, gpu));
        CHECK(hipDeviceGetPCIBusId(bus, sizeof bus, gpu));
        CHECK(hipDeviceGetByPCIBusId(&found, bus));
        expect(found == gpu, "a GPU by its place on the bus");
        expect(about.multiProcessorCount == attribute(hipDeviceAttributeMultiprocessorCount), "a GPU's compute units");
        expect(about.warpSize == attribute(hipDeviceAttributeWarpSize), "a GPU's wavefront");
    }
    for (int from = 0; from < gpus; from++)
        for (int to = 0; to < gpus; to++) {
            if (from == to)
                continue;
            int can = 0;
            CHECK(hipDeviceCanAccessPeer(&can, to, from));
            expect(can == 1, "a GPU reaches another one's memory");
            CHECK(hipSetDevice(from));
            Buffer<int> there(N);
            launch(there.data, 3 + from, nullptr);
            CHECK(hipDeviceSynchronize());
            CHECK(hipSetDevice(to));
            CHECK(hipDeviceEnablePeerAccess(from, 0));
            expect(hipDeviceEnablePeerAccess(from, 0) == hipErrorPeerAccessAlreadyEnabled, "a peer that is enabled already");
            Buffer<int> here(N);
            CHECK(hipMemcpyPeer(here.data, to, there.data, from, N * sizeof(int)));
            all(here, 3 + from, "a copy from another GPU");
            launch(there.data, 1, nullptr);
            CHECK(hipDeviceSynchronize());
            all(there, step(3 + from, 1), "a kernel on another GPU's memory");
            CHECK(hipDeviceDisablePeerAccess(from));
        }
    CHECK(hipSetDevice(0));
    std::printf("%d GPUs\n", gpus);
}

const Tests TESTS = {
    {"streams", streams}, {"events", events},   {"functions", functions}, {"captured", captured},
    {"built", built},     {"threads", threads}, {"devices", devices},
};

} // namespace

int main(int argc, char **argv) { return run(TESTS, argc, argv); }
