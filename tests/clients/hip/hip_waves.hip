// SPDX-License-Identifier: GPL-2.0 OR MIT
// A HIP program about what work-items do together: shuffles, votes, atomics of each scope, cooperative groups, LDS, launch
// bounds and occupancy, and functions of integers and floats. The host computes each result as well. It says "right"
// after each test and "ok" at the end.
//
//        hip_waves [NAME...]

#include "tests.h"

#include <hip/hip_cooperative_groups.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>

namespace {

namespace cg = cooperative_groups;

// Any bits, of a work-item.
__host__ __device__ unsigned bits(unsigned i) { return (i + 1) * 2654435761u ^ i << 7; }

__global__ void shuffle(unsigned *out, int width)
{
    unsigned i = index(), mine = bits(i), at = i * 6;
    out[at] = __shfl(mine, int(bits(i) % unsigned(width)), width);
    out[at + 1] = __shfl_up(mine, 3, width);
    out[at + 2] = __shfl_down(mine, 5, width);
    out[at + 3] = __shfl_xor(mine, 9, width);
    double wide = __shfl(double(i) + 0.25, 1, width);
    out[at + 4] = unsigned(wide * 4);
    unsigned long long large = __shfl_xor(static_cast<unsigned long long>(mine) << 20, 1, width);
    out[at + 5] = unsigned(large >> 20);
}

void shuffles()
{
    const int wave = attribute(hipDeviceAttributeWarpSize), n = 256;
    for (int width = 16; width <= wave; width *= 2) {
        Buffer<unsigned> out(n * 6);
        shuffle<<<1, n>>>(out.data, width);
        auto found = out.read();
        for (int i = 0; i < n; i++) {
            int begin = i / width * width, lane = i - begin;
            auto other = [&](int to) { return bits(unsigned(to >= 0 && to < width ? begin + to : i)); };
            unsigned want[] = {
                other(int(bits(unsigned(i)) % unsigned(width))), other(lane - 3), other(lane + 5), other(lane ^ 9),
                unsigned(begin + 1) * 4 + 1,                other(lane ^ 1),
            };
            for (int k = 0; k < 6; k++)
                expect(found[i * 6 + k] == want[k], "shuffle " + std::to_string(k) + " of width " + std::to_string(width));
        }
    }
}

__global__ void vote(unsigned long long *out, int odd)
{
    unsigned i = index();
    bool mine = bits(i) % 3 == 0;
    out[i * 4] = __ballot(mine);
    out[i * 4 + 1] = unsigned(__any(mine && int(i) == odd)) * 2 + unsigned(__all(mine || int(i) != odd));
    // Only a part of the wave takes part.
    out[i * 4 + 2] = 0;
    if (i % 4 == 1)
        out[i * 4 + 2] = __ballot(true);
    out[i * 4 + 3] = __lane_id();
}

void votes()
{
    const int wave = attribute(hipDeviceAttributeWarpSize), n = 256, odd = 70;
    Buffer<unsigned long long> out(n * 4);
    vote<<<1, n>>>(out.data, odd);
    auto found = out.read();
    for (int i = 0; i < n; i++) {
        int begin = i / wave * wave;
        unsigned long long set = 0, part = 0;
        bool is_there = odd >= begin && odd < begin + wave, its = bits(odd) % 3 == 0;
        for (int lane = 0; lane < wave; lane++) {
            set |= static_cast<unsigned long long>(bits(unsigned(begin + lane)) % 3 == 0) << lane;
            part |= static_cast<unsigned long long>(lane % 4 == 1) << lane;
        }
        expect(found[i * 4] == set, "a ballot");
        expect(found[i * 4 + 1] == (is_there && its ? 2u : 0u) + (!is_there || its ? 1u : 0u), "any and all");
        expect(found[i * 4 + 2] == (i % 4 == 1 ? part : 0), "a ballot of a part of the wave");
        expect(found[i * 4 + 3] == static_cast<unsigned long long>(i - begin), "a lane's number");
    }
}

// Each kind of atomic once per work-item; the results do not depend on the order.
template <int scope> __global__ void atomic(unsigned *word, unsigned long long *wide, float *real, unsigned *old)
{
    unsigned i = index();
    __hip_atomic_fetch_add(&word[0], i, __ATOMIC_RELAXED, scope);
    __hip_atomic_fetch_or(&word[1], 1u << i % 32, __ATOMIC_RELAXED, scope);
    __hip_atomic_fetch_and(&word[2], ~(1u << i % 30), __ATOMIC_RELAXED, scope);
    __hip_atomic_fetch_xor(&word[3], i, __ATOMIC_RELAXED, scope);
    __hip_atomic_fetch_max(&word[4], bits(i), __ATOMIC_RELAXED, scope);
    __hip_atomic_fetch_min(&word[5], bits(i), __ATOMIC_RELAXED, scope);
    __hip_atomic_fetch_add(wide, bits(i), __ATOMIC_ACQ_REL, scope);
    __hip_atomic_fetch_add(real, 0.5f, __ATOMIC_RELAXED, scope);
    // Each ticket is drawn once.
    old[__hip_atomic_fetch_add(&word[6], 1u, __ATOMIC_RELAXED, scope)] = 1;
    // A counter by comparison and exchange.
    unsigned seen = __hip_atomic_load(&word[7], __ATOMIC_RELAXED, scope);
    while (!__hip_atomic_compare_exchange_strong(&word[7], &seen, seen * 5 + 1, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED, scope)) {
    }
}

template <int scope> void atomics_of(const char *name, unsigned *word, unsigned blocks, unsigned threads)
{
    unsigned n = blocks * threads;
    std::memset(word, 0, 8 * sizeof(unsigned));
    word[2] = word[5] = ~0u;
    Buffer<unsigned long long> wide(1);
    Buffer<float> real(1);
    Buffer<unsigned> old(n);
    atomic<scope><<<blocks, threads>>>(word, wide.data, real.data, old.data);
    CHECK(hipDeviceSynchronize());
    unsigned want[8] = {0, 0, ~0u, 0, 0, ~0u, n, 0};
    unsigned long long sum = 0;
    for (unsigned i = 0; i < n; i++) {
        want[0] += i, want[1] |= 1u << i % 32, want[2] &= ~(1u << i % 30), want[3] ^= i;
        want[4] = std::max(want[4], bits(i)), want[5] = std::min(want[5], bits(i));
        want[7] = want[7] * 5 + 1, sum += bits(i);
    }
    for (int k = 0; k < 8; k++)
        expect(word[k] == want[k], std::string("atomic ") + std::to_string(k) + " of scope " + name);
    expect(wide.read()[0] == sum, std::string("an atomic sum of 64 bits, of scope ") + name);
    expect(real.read()[0] == 0.5f * float(n), std::string("an atomic sum of floats, of scope ") + name);
    same(old.read(), std::vector<unsigned>(n, 1), std::string("tickets of scope ") + name);
}

void atomics()
{
    unsigned *word;
    CHECK(hipHostMalloc(reinterpret_cast<void **>(&word), 8 * sizeof(unsigned), hipHostMallocCoherent));
    const auto wave = unsigned(attribute(hipDeviceAttributeWarpSize));
    atomics_of<__HIP_MEMORY_SCOPE_WAVEFRONT>("wavefront", word, 1, wave);
    atomics_of<__HIP_MEMORY_SCOPE_WORKGROUP>("work-group", word, 1, 512);
    atomics_of<__HIP_MEMORY_SCOPE_AGENT>("GPU", word, 24, 256);
    atomics_of<__HIP_MEMORY_SCOPE_SYSTEM>("system", word, 24, 256);
    CHECK(hipHostFree(word));
}

__global__ void groups(unsigned *out)
{
    cg::thread_block block = cg::this_thread_block();
    __shared__ unsigned shared[256];
    unsigned i = block.thread_rank(), at = (blockIdx.x * block.size() + i) * 5;
    shared[i] = bits(blockIdx.x * 256 + i);
    block.sync();
    out[at] = shared[255 - i];
    cg::thread_block_tile<16> tile = cg::tiled_partition<16>(block);
    unsigned sum = shared[i];
    for (int step = 8; step > 0; step /= 2)
        sum += tile.shfl_down(sum, step);
    out[at + 1] = tile.shfl(sum, 0);
    out[at + 2] = tile.thread_rank() * 100 + tile.size();
    if (bits(i) % 2 == 0) {
        cg::coalesced_group some = cg::coalesced_threads();
        out[at + 3] = some.thread_rank();
        out[at + 4] = some.size();
    }
}

void cooperative()
{
    const unsigned blocks = 4, n = 256, wave = unsigned(attribute(hipDeviceAttributeWarpSize));
    Buffer<unsigned> out(blocks * n * 5);
    groups<<<blocks, n>>>(out.data);
    auto found = out.read();
    for (unsigned block = 0; block < blocks; block++)
        for (unsigned i = 0; i < n; i++) {
            unsigned at = (block * n + i) * 5, sum = 0, before = 0, many = 0;
            for (unsigned k = 0; k < 16; k++)
                sum += bits(block * 256 + i / 16 * 16 + k);
            for (unsigned k = i / wave * wave; k < (i / wave + 1) * wave; k++)
                if (bits(k) % 2 == 0)
                    many++, before += k < i;
            expect(found[at] == bits(block * 256 + 255 - i), "a block's LDS behind its barrier");
            expect(found[at + 1] == sum, "a tile's sum");
            expect(found[at + 2] == i % 16 * 100 + 16, "a tile's rank and size");
            if (bits(i) % 2 == 0)
                expect(found[at + 3] == before && found[at + 4] == many, "a group of those that came together");
        }
}

extern __shared__ unsigned dynamic[];

// In LDS whose size the launch says: the block's elements from the last to the first, and their running sum.
__global__ void __launch_bounds__(512, 2) scan(const unsigned *in, unsigned *reversed, unsigned *sums)
{
    unsigned i = threadIdx.x, n = blockDim.x, at = blockIdx.x * n;
    unsigned *other = dynamic + n;
    dynamic[i] = in[at + i];
    __syncthreads();
    reversed[at + i] = dynamic[n - 1 - i];
    for (unsigned step = 1; step < n; step *= 2) {
        __syncthreads();
        other[i] = i >= step ? dynamic[i] + dynamic[i - step] : dynamic[i];
        __syncthreads();
        dynamic[i] = other[i];
    }
    sums[at + i] = dynamic[i];
    if (__syncthreads_or(int(i) == 3) == 0 || __syncthreads_and(1) == 0 || __syncthreads_count(i % 2) != int(n / 2))
        sums[at + i] = 0;
}

void bounds()
{
    for (unsigned threads : {64u, 192u, 512u}) {
        const unsigned blocks = 5;
        std::vector<unsigned> in(blocks * threads), reversed(in.size()), sums(in.size());
        for (unsigned i = 0; i < in.size(); i++)
            in[i] = bits(i);
        for (unsigned block = 0; block < blocks; block++) {
            auto begin = in.begin() + block * threads;
            std::reverse_copy(begin, begin + threads, reversed.begin() + block * threads);
            std::partial_sum(begin, begin + threads, sums.begin() + block * threads);
        }
        Buffer<unsigned> from(in), turned(in.size()), summed(in.size());
        scan<<<blocks, threads, 2 * threads * sizeof(unsigned)>>>(from.data, turned.data, summed.data);
        same(turned.read(), reversed, "LDS from its end");
        same(summed.read(), sums, "a block's running sum");
    }
    hipFuncAttributes about;
    CHECK(hipFuncGetAttributes(&about, reinterpret_cast<const void *>(scan)));
    expect(about.maxThreadsPerBlock == 512, "the launch bounds of a kernel");
    // More work-items than the bounds have.
    Buffer<unsigned> none(1024);
    scan<<<1, 1024, 8192>>>(none.data, none.data, none.data);
    expect(hipGetLastError() != hipSuccess, "a launch beyond its kernel's bounds");
}

void occupancy()
{
    int grid = 0, block = 0, free = 0, full = 0;
    auto kernel = reinterpret_cast<const void *>(scan);
    // HIP 5.2.3 does not look at launch bounds here: the kernel has none.
    CHECK(hipOccupancyMaxPotentialBlockSize(&grid, &block, reinterpret_cast<const void *>(shuffle), 0, 0));
    const int most = attribute(hipDeviceAttributeMaxThreadsPerBlock), wave = attribute(hipDeviceAttributeWarpSize);
    expect(block > 0 && block <= most && block % wave == 0, "the block that fills a GPU best is of whole waves");
    expect(grid >= attribute(hipDeviceAttributeMultiprocessorCount), "a grid that fills a GPU has a block for each unit");
    CHECK(hipOccupancyMaxActiveBlocksPerMultiprocessor(&free, kernel, 256, 0));
    const int lds = attribute(hipDeviceAttributeMaxSharedMemoryPerBlock);
    // Votes of a block have some LDS of their own.
    CHECK(hipOccupancyMaxActiveBlocksPerMultiprocessor(&full, kernel, 256, std::size_t(lds - 1024)));
    expect(free >= 2 && full == 1, "blocks of a compute unit, by their LDS");
}

__global__ void integers(const unsigned *a, const unsigned *b, unsigned *out, unsigned n)
{
    unsigned i = index();
    if (i >= n)
        return;
    unsigned x = a[i], y = b[i];
    unsigned long long wide = static_cast<unsigned long long>(x) << 32 | y;
    out[i * 10] = unsigned(__popc(x)) + 100 * unsigned(__popcll(wide));
    out[i * 10 + 1] = unsigned(__clz(int(x))) + 100 * unsigned(__clzll(static_cast<long long>(wide)));
    out[i * 10 + 2] = unsigned(__ffs(int(x)));
    out[i * 10 + 3] = __brev(x);
    out[i * 10 + 4] = __umulhi(x, y);
    out[i * 10 + 5] = unsigned(__mulhi(int(x), int(y)));
    out[i * 10 + 6] = __byte_perm(x, y, 0x5140);
    out[i * 10 + 7] = x / (y | 1) + x % (y | 1);
    out[i * 10 + 8] = unsigned(wide / (x | 1));
    out[i * 10 + 9] = unsigned(__mul24(int(x), int(y)));
}

void arithmetic()
{
    const unsigned n = 1024;
    std::vector<unsigned> a(n), b(n);
    for (unsigned i = 0; i < n; i++)
        a[i] = bits(i) >> i % 32, b[i] = bits(i * 7 + 1) >> i % 29;
    a[0] = 0, a[1] = ~0u, b[1] = ~0u, a[2] = 1u << 31;
    Buffer<unsigned> from(a), with(b), out(n * 10);
    integers<<<(n + 255) / 256, 256>>>(from.data, with.data, out.data, n);
    auto found = out.read();
    auto sign = [](unsigned value) { return int(value << 8) >> 8; };
    for (unsigned i = 0; i < n; i++) {
        unsigned x = a[i], y = b[i], reversed = 0;
        unsigned long long wide = static_cast<unsigned long long>(x) << 32 | y;
        for (int bit = 0; bit < 32; bit++)
            reversed |= (x >> bit & 1) << (31 - bit);
        unsigned want[] = {
            unsigned(__builtin_popcount(x)) + 100 * unsigned(__builtin_popcountll(wide)),
            (x ? unsigned(__builtin_clz(x)) : 32) + 100 * (wide ? unsigned(__builtin_clzll(wide)) : 64),
            unsigned(__builtin_ffs(int(x))),
            reversed,
            unsigned(static_cast<unsigned long long>(x) * y >> 32),
            unsigned(static_cast<std::uint64_t>(std::int64_t(int(x)) * int(y)) >> 32),
            (x & 0xff) | (y & 0xff) << 8 | (x >> 8 & 0xff) << 16 | (y >> 8 & 0xff) << 24,
            x / (y | 1) + x % (y | 1),
            unsigned(wide / (x | 1)),
            unsigned(sign(x)) * unsigned(sign(y)),
        };
        for (unsigned k = 0; k < 10; k++)
            expect(found[i * 10 + k] == want[k], "integer function " + std::to_string(k) + " of " + std::to_string(x));
    }
}

__global__ void reals(const float *a, const float *b, float *out, double *wide, unsigned n)
{
    unsigned i = index();
    if (i >= n)
        return;
    float x = a[i], y = b[i];
    out[i * 8] = fmaf(x, y, 1.0f);
    out[i * 8 + 1] = __fsqrt_rn(fabsf(x));
    out[i * 8 + 2] = fmaxf(x, y) + fminf(x, y);
    out[i * 8 + 3] = truncf(x) + floorf(y) + ceilf(x) + rintf(y);
    out[i * 8 + 4] = copysignf(x, y);
    out[i * 8 + 5] = ldexpf(x, int(i % 40) - 20);
    out[i * 8 + 6] = float(int(x)) + float(unsigned(fabsf(y)));
    out[i * 8 + 7] = __fdiv_rn(x, y);
    wide[i * 3] = fma(double(x), double(y), 1.0);
    wide[i * 3 + 1] = sqrt(fabs(double(x)));
    wide[i * 3 + 2] = double(x) / double(y);
}

// All of these are exact, or rounded once.
void rounded()
{
    const unsigned n = 1024;
    std::vector<float> a(n), b(n);
    for (unsigned i = 0; i < n; i++) {
        a[i] = std::ldexp(float(int(bits(i))), -int(i % 24) - 7);
        b[i] = std::ldexp(float(int(bits(i + 5000)) | 1), -int(i % 20) - 11);
    }
    Buffer<float> from(a), with(b), out(n * 8);
    Buffer<double> out64(n * 3);
    reals<<<(n + 255) / 256, 256>>>(from.data, with.data, out.data, out64.data, n);
    auto found = out.read();
    auto wide = out64.read();
    for (unsigned i = 0; i < n; i++) {
        float x = a[i], y = b[i];
        float want[] = {
            std::fma(x, y, 1.0f),    std::sqrt(std::fabs(x)),          std::fmax(x, y) + std::fmin(x, y),
            std::trunc(x) + std::floor(y) + std::ceil(x) + std::rint(y),
            std::copysign(x, y),     std::ldexp(x, int(i % 40) - 20),  float(int(x)) + float(unsigned(std::fabs(y))),
            x / y,
        };
        for (unsigned k = 0; k < 8; k++)
            expect(found[i * 8 + k] == want[k], "function " + std::to_string(k) + " of " + std::to_string(x));
        double want64[] = {std::fma(double(x), double(y), 1.0), std::sqrt(std::fabs(double(x))), double(x) / double(y)};
        for (unsigned k = 0; k < 3; k++)
            expect(wide[i * 3 + k] == want64[k], "function " + std::to_string(k) + " in double precision");
    }
}

const Tests TESTS = {
    {"shuffles", shuffles}, {"votes", votes},         {"atomics", atomics},       {"cooperative", cooperative},
    {"bounds", bounds},     {"occupancy", occupancy}, {"arithmetic", arithmetic}, {"rounded", rounded},
};

} // namespace

int main(int argc, char **argv) { return run(TESTS, argc, argv); }
