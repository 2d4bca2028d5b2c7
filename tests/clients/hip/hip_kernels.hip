// SPDX-License-Identifier: GPL-2.0 OR MIT
// A HIP program with kernels of its own, one test for each thing that a compute unit has to know. It says "right" after each and "ok" at
// the end.
//
//        hip_kernels            all of them
//        hip_kernels NAME...    some
//
// Compiled by hipcc for the GPUs that are to run it.

#include "tests.h"

#include <hip/hip_cooperative_groups.h>

#include <cmath>

namespace {

namespace cg = cooperative_groups;

__global__ void add(const float *a, const float *b, float *c, unsigned n)
{
    if (index() < n)
        c[index()] = a[index()] + b[index()];
}

void vectors()
{
    const unsigned n = 100003;
    std::vector<float> a(n), b(n);
    for (unsigned i = 0; i < n; i++)
        a[i] = float(i), b[i] = 2 * float(i) + 0.5f;
    Buffer<float> da(a), db(b), dc(n);
    add<<<(n + 255) / 256, 256>>>(da.data, db.data, dc.data, n);
    auto c = dc.read();
    for (unsigned i = 0; i < n; i++)
        expect(c[i] == a[i] + b[i], "vectors are added");
}

__global__ void count(const unsigned *data, unsigned *bins, unsigned n)
{
    __shared__ unsigned local[64];
    if (threadIdx.x < 64)
        local[threadIdx.x] = 0;
    __syncthreads();
    for (unsigned i = index(); i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&local[data[i] & 63], 1);
    __syncthreads();
    if (threadIdx.x < 64)
        atomicAdd(&bins[threadIdx.x], local[threadIdx.x]);
}

void atomics()
{
    const unsigned n = 100000;
    std::vector<unsigned> data(n), want(64);
    for (unsigned i = 0; i < n; i++)
        want[(data[i] = i * 2654435761u >> 7) & 63]++;
    Buffer<unsigned> d(data), bins(64);
    count<<<16, 256>>>(d.data, bins.data, n);
    expect(bins.read() == want, "a histogram in LDS and in memory");
}

__global__ void stack(int *out, int n)
{
    volatile int kept[64];
    int i = int(index()), sum = 0;
    for (int k = 0; k < 64; k++)
        kept[k] = i * k;
    for (int k = 0; k < 64; k++)
        sum += kept[(k * 7 + i) & 63];
    if (i < n)
        out[i] = sum;
}

void scratch()
{
    const int n = 1000;
    Buffer<int> out(n);
    stack<<<16, 64>>>(out.data, n);
    auto found = out.read();
    for (int i = 0; i < n; i++) {
        int sum = 0;
        for (int k = 0; k < 64; k++)
            sum += i * ((k * 7 + i) & 63);
        expect(found[i] == sum, "an array of each work-item's own");
    }
}

__global__ void total(const unsigned *in, unsigned *part, unsigned *out, int rounds)
{
    cg::grid_group grid = cg::this_grid();
    __shared__ unsigned sum;
    for (int round = 0; round < rounds; round++) {
        if (threadIdx.x == 0)
            sum = 0;
        __syncthreads();
        atomicAdd(&sum, in[grid.thread_rank()]);
        __syncthreads();
        if (threadIdx.x == 0)
            part[blockIdx.x] = sum + round;
        grid.sync();
        if (grid.thread_rank() == 0) {
            unsigned all = 0;
            for (unsigned block = 0; block < gridDim.x; block++)
                all += part[block];
            out[round] = all;
        }
        grid.sync();
    }
}

void cooperative()
{
    unsigned blocks = 32, threads = 128, want = 0;
    int rounds = 5;
    std::vector<unsigned> data(blocks * threads);
    for (unsigned i = 0; i < data.size(); i++)
        want += data[i] = i * 40503u;
    Buffer<unsigned> in(data), part(blocks), out{std::size_t(rounds)};
    void *arguments[] = {&in.data, &part.data, &out.data, &rounds};
    CHECK(hipLaunchCooperativeKernel((void *)total, dim3(blocks), dim3(threads), arguments, 0, 0));
    auto found = out.read();
    for (int round = 0; round < rounds; round++)
        expect(found[std::size_t(round)] == want + unsigned(round) * blocks, "all blocks of a grid wait for each other");
}

__global__ void compute(double *d, float *f, int n)
{
    int i = int(index());
    if (i < n) {
        d[i] = sqrt(d[i]) / 3.0 + sin(d[i]);
        f[i] = expf(f[i] * 0.01f) + f[i] / 7.0f;
    }
}

void functions()
{
    const int n = 500;
    std::vector<double> d(n);
    std::vector<float> f(n);
    for (int i = 0; i < n; i++)
        d[i] = i * 1.5, f[i] = float(i - 250);
    Buffer<double> dd(d);
    Buffer<float> df(f);
    compute<<<2, 256>>>(dd.data, df.data, n);
    auto found = dd.read();
    auto found32 = df.read();
    for (int i = 0; i < n; i++) {
        double want = std::sqrt(d[i]) / 3.0 + std::sin(d[i]);
        float want32 = std::exp(f[i] * 0.01f) + f[i] / 7.0f;
        expect(std::fabs(want - found[i]) <= 1e-14 * (1 + std::fabs(want)), "functions in double precision");
        expect(std::fabs(want32 - found32[i]) <= 1e-6f * (1 + std::fabs(want32)), "functions in single precision");
    }
}

__global__ void accumulate(int *p, int value, int n)
{
    if (int(index()) < n)
        p[index()] += value;
}

void streams()
{
    const int n = 5000, many = 4;
    int gpus = 0;
    CHECK(hipGetDeviceCount(&gpus));
    for (int gpu = 0; gpu < gpus; gpu++) {
        CHECK(hipSetDevice(gpu));
        hipStream_t stream[many];
        int *data[many];
        for (int k = 0; k < many; k++) {
            CHECK(hipStreamCreate(&stream[k]));
            CHECK(hipMalloc(&data[k], n * sizeof(int)));
            CHECK(hipMemsetAsync(data[k], 0, n * sizeof(int), stream[k]));
        }
        for (int round = 1; round <= 5; round++)
            for (int k = 0; k < many; k++)
                accumulate<<<(n + 255) / 256, 256, 0, stream[k]>>>(data[k], round * (k + 1), n);
        for (int k = 0; k < many; k++) {
            std::vector<int> found(n);
            CHECK(hipMemcpyAsync(found.data(), data[k], n * sizeof(int), hipMemcpyDeviceToHost, stream[k]));
            CHECK(hipStreamSynchronize(stream[k]));
            for (int value : found)
                expect(value == 15 * (k + 1), "kernels of four streams, each in its order");
            CHECK(hipFree(data[k]));
            CHECK(hipStreamDestroy(stream[k]));
        }
    }
    CHECK(hipSetDevice(0));
}

void memory()
{
    const int n = 20000;
    int *managed;
    CHECK(hipMallocManaged(&managed, n * sizeof(int)));
    for (int i = 0; i < n; i++)
        managed[i] = i;
    accumulate<<<(n + 255) / 256, 256>>>(managed, 7, n);
    CHECK(hipDeviceSynchronize());
    for (int i = 0; i < n; i++)
        expect(managed[i] == i + 7, "managed memory");
    CHECK(hipFree(managed));
    std::vector<int> registered(n, 5);
    int *on_gpu;
    CHECK(hipHostRegister(registered.data(), n * sizeof(int), 0));
    CHECK(hipHostGetDevicePointer((void **)&on_gpu, registered.data(), 0));
    accumulate<<<(n + 255) / 256, 256>>>(on_gpu, 8, n);
    CHECK(hipDeviceSynchronize());
    for (int value : registered)
        expect(value == 13, "registered memory");
    CHECK(hipHostUnregister(registered.data()));
}

__global__ void say() { if (threadIdx.x < 2) printf("block %d, thread %d\n", int(blockIdx.x), int(threadIdx.x)); }

void print()
{
    say<<<2, 64>>>();
    CHECK(hipDeviceSynchronize());
}

const Tests TESTS = {
    {"vectors", vectors},     {"atomics", atomics}, {"scratch", scratch}, {"cooperative", cooperative},
    {"functions", functions}, {"streams", streams}, {"memory", memory},   {"print", print},
};

} // namespace

int main(int argc, char **argv) { return run(TESTS, argc, argv); }
