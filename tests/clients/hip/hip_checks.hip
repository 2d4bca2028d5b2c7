// SPDX-License-Identifier: GPL-2.0 OR MIT
// Bugs that hardware hides, one by name, and correct twins of them: what `vkfd run --check` is for.
#include "tests.h"

namespace {

constexpr unsigned items = 256;

// A work-item's place in what all groups write.
__device__ unsigned own() { return blockIdx.x * items + threadIdx.x; }

__global__ void number(int *to) { to[threadIdx.x] = threadIdx.x; }
__global__ void copy(int *to, const int *from) { to[threadIdx.x] = from[threadIdx.x]; }
__global__ void scale(int *to, const int *from) { to[threadIdx.x] = from[threadIdx.x] * 3 + 1; }
__global__ void count(int *to, const int *from)
{
    if (from[threadIdx.x] > 5)
        atomicAdd(to, 1);
}

__global__ void reverse(int *to, bool wait)
{
    __shared__ int all[items];
    all[threadIdx.x] = threadIdx.x + 1;
    if (wait)
        __syncthreads();
    to[own()] = all[items - 1 - threadIdx.x];
}

__global__ void shifted(int *to, int by)
{
    __shared__ int all[items];
    all[threadIdx.x] = threadIdx.x;
    __syncthreads();
    to[own()] = all[threadIdx.x + by];
}

__global__ void shared(int *to, bool write)
{
    __shared__ int all[items];
    if (write)
        all[threadIdx.x] = threadIdx.x;
    __syncthreads();
    to[own()] = all[items - 1 - threadIdx.x] * 3;
}

__global__ void table(int *to, int written)
{
    int all[64];
    for (int i = 0; i < written; i++)
        all[i] = i;
    to[own()] = all[(threadIdx.x * 7) & 63] * 3;
}

// Each group writes a part, or all write the first one.
__global__ void parts(int *to, bool apart) { to[apart ? own() : threadIdx.x] = own(); }

// The last group to come adds what the others have written.
__global__ void last(int *to, bool fenced)
{
    if (threadIdx.x)
        return;
    to[blockIdx.x] = blockIdx.x + 1;
    if (fenced)
        __threadfence();
    const int before = atomicAdd(to + 100, 1);
    if (fenced)
        __threadfence();
    if (before == static_cast<int>(gridDim.x) - 1)
        to[200] = to[0] + to[1];
}

// A load that the compiler does not know, with and without a wait behind it.
__global__ void early(int *to, bool waits)
{
    int value;
    const int *from = to + own();
    if (waits)
        asm volatile("global_load_dword %0, %1, off\n\ts_waitcnt vmcnt(0)" : "=&v"(value) : "v"(from));
    else
        asm volatile("global_load_dword %0, %1, off" : "=&v"(value) : "v"(from));
    to[own()] = value + 1;
}

#if defined(__GFX9__)
#define NOPS(count) "s_nop " #count "\n\t"
#else
#define NOPS(count) ""
#endif
// A vector operation writes the register that selects a lane.
template <bool apart> __global__ void lane(int *to, int from)
{
    int value, select;
    if (apart)
        asm volatile("v_readfirstlane_b32 %1, %2\n\t" NOPS(3) "v_readlane_b32 %0, %2, %1" : "=s"(value), "=&s"(select) : "v"(from));
    else
        asm volatile("v_readfirstlane_b32 %1, %2\n\tv_readlane_b32 %0, %2, %1" : "=s"(value), "=&s"(select) : "v"(from));
    to[own()] = value;
}

// Memory that nothing has written.
struct Raw {
    explicit Raw(std::size_t bytes) { CHECK(hipMalloc(&data, bytes)); }
    ~Raw() { CHECK(hipFree(data)); }
    int *data = nullptr;
};

void finish()
{
    CHECK(hipGetLastError());
    CHECK(hipDeviceSynchronize());
}

void numbers(unsigned threads)
{
    Raw to(400);
    number<<<1, threads>>>(to.data);
    finish();
}

void freed()
{
    Raw other(400);
    int *gone;
    {
        Raw to(400);
        gone = to.data;
    }
    number<<<1, 100>>>(gone);
    finish();
}

template <typename Kernel> void from_memory(Kernel kernel, bool write)
{
    Raw to(items * sizeof(int)), from(items * sizeof(int));
    CHECK(hipMemset(to.data, 0, items * sizeof(int)));
    if (write) {
        std::vector<int> values(items, 9);
        CHECK(hipMemcpy(from.data, values.data(), items * sizeof(int), hipMemcpyHostToDevice));
    }
    kernel<<<1, items>>>(to.data, from.data);
    finish();
    std::vector<int> back(items);
    CHECK(hipMemcpy(back.data(), to.data, items * sizeof(int), hipMemcpyDeviceToHost));
}

template <typename Kernel, typename Value> void alone(Kernel kernel, Value value)
{
    Raw to(2 * items * sizeof(int));
    CHECK(hipMemset(to.data, 0, 2 * items * sizeof(int)));
    kernel<<<2, items>>>(to.data, value);
    finish();
}

// Prints what depends on the order of waves, or on when loads arrive, if anything does.
template <typename Kernel> void printed(Kernel kernel, bool wait)
{
    Raw to(items * sizeof(int));
    CHECK(hipMemset(to.data, 1, items * sizeof(int)));
    kernel<<<1, items>>>(to.data, wait);
    finish();
    std::vector<int> back(items);
    CHECK(hipMemcpy(back.data(), to.data, items * sizeof(int), hipMemcpyDeviceToHost));
    long sum = 0;
    for (unsigned i = 0; i < items; i++)
        sum += long{back[i]} * (i + 1);
    std::printf("sum: %ld\n", sum);
}

const Tests tests = {
    {"past", [] { numbers(128); }},
    {"past-twin", [] { numbers(100); }},
    {"freed", freed},
    {"lds", [] { alone(shifted, 1); }},
    {"lds-twin", [] { alone(shifted, 0); }},
    {"race", [] { alone(reverse, false); }},
    {"race-twin", [] { alone(reverse, true); }},
    {"order", [] { printed(reverse, false); }},
    {"order-twin", [] { printed(reverse, true); }},
    {"arrival", [] { printed(early, false); }},
    {"arrival-twin", [] { printed(early, true); }},
    {"branch", [] { from_memory(count, false); }},
    {"branch-twin", [] { from_memory(count, true); }},
    {"store", [] { from_memory(scale, false); }},
    {"store-twin", [] { from_memory(scale, true); }},
    {"move", [] { from_memory(copy, false); }},
    {"shared", [] { alone(shared, false); }},
    {"shared-twin", [] { alone(shared, true); }},
    {"parts", [] { alone(parts, false); }},
    {"parts-twin", [] { alone(parts, true); }},
    {"last", [] { alone(last, false); }},
    {"last-twin", [] { alone(last, true); }},
    {"early", [] { alone(early, false); }},
    {"early-twin", [] { alone(early, true); }},
    {"lane", [] { alone(lane<false>, 3); }},
    {"lane-twin", [] { alone(lane<true>, 3); }},
    {"table", [] { alone(table, 40); }},
    {"table-twin", [] { alone(table, 64); }},
};

} // namespace

int main(int argc, char **argv) { return run(tests, argc, argv); }
