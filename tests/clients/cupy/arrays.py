# SPDX-License-Identifier: GPL-2.0 OR MIT
"""CuPy's arrays against NumPy's: arithmetic, reductions, sorting, indices, a reader's own kernels.

Usage: arrays.py [CHECK...]. Prints a line for each check.
"""

import cupy
import numpy
from checks import check, equal, main, near, part

F32, F64 = numpy.float32, numpy.float64


def numbers(*shape, seed=1, kind=F32):
    """Normally distributed numbers; CuPy gets the same."""
    return numpy.random.default_rng(seed).standard_normal(shape).astype(kind)


def integers(*shape, seed=2, below=1000, kind=numpy.int32):
    return numpy.random.default_rng(seed).integers(0, below, shape).astype(kind)


part("arithmetic")


@check
def copies():
    there = integers(70001, below=1 << 31)
    device = cupy.asarray(there)
    return equal(cupy.asnumpy(device[::-3]), there[::-3])


@check
def arithmetic():
    a, b = numbers(1000, 33), numbers(33, seed=3)
    wanted = a * b + a / (2 + b * b) - b
    x, y = cupy.asarray(a), cupy.asarray(b)
    return near(cupy.asnumpy(x * y + x / (2 + y * y) - y), wanted, 1e-6)


@check
def whole_numbers():
    a, b = integers(5000, below=1 << 30), integers(5000, seed=4, below=77) + 1
    wanted = (a // b) * 3 ^ (a % b) | (b << 3)
    x, y = cupy.asarray(a), cupy.asarray(b)
    return equal(cupy.asnumpy((x // y) * 3 ^ (x % y) | (y << 3)), wanted)


@check
def functions():
    a = numbers(3000, kind=F64)
    wanted = numpy.exp(numpy.sin(a)) + numpy.log1p(a * a) * numpy.tanh(a) + numpy.arctan2(a, 2)
    x = cupy.asarray(a)
    return near(
        cupy.asnumpy(cupy.exp(cupy.sin(x)) + cupy.log1p(x * x) * cupy.tanh(x) + cupy.arctan2(x, 2)), wanted, 1e-13
    )


@check
def halves():
    a = numbers(4000).astype(numpy.float16)
    return equal(cupy.asnumpy(cupy.asarray(a) * 3 + 1), a * 3 + 1)


@check
def complex_numbers():
    a = (numbers(2000) + 1j * numbers(2000, seed=5)).astype(numpy.complex64)
    x = cupy.asarray(a)
    return near(cupy.asnumpy(cupy.exp(x) * x.conj() + cupy.abs(x)), numpy.exp(a) * a.conj() + numpy.abs(a), 1e-5)


part("reductions")


@check
def sums():
    a = integers(300, 257, below=1 << 20, kind=numpy.int64)
    x = cupy.asarray(a)
    return equal(cupy.asnumpy(x.sum(axis=0)), a.sum(axis=0)) + "; " + equal(cupy.asnumpy(x.sum()), a.sum())


@check
def means():
    a = numbers(400, 129)
    x = cupy.asarray(a)
    wanted = numpy.stack([a.mean(axis=1), a.var(axis=1), a.std(axis=1)])
    return near(cupy.asnumpy(cupy.stack([x.mean(axis=1), x.var(axis=1), x.std(axis=1)])), wanted, 1e-5)


@check
def extremes():
    a = numbers(100, 331)
    x = cupy.asarray(a)
    said = equal(cupy.asnumpy(x.argmax(axis=1)), a.argmax(axis=1))
    return said + "; " + equal(cupy.asnumpy(x.min(axis=0)), a.min(axis=0))


@check
def running_sums():
    a = integers(100003, below=1000, kind=numpy.int64)
    return equal(cupy.asnumpy(cupy.cumsum(cupy.asarray(a))), a.cumsum())


part("sorting")


@check
def sort():
    a = numbers(50021)
    return equal(cupy.asnumpy(cupy.sort(cupy.asarray(a))), numpy.sort(a))


@check
def sort_rows():
    a = integers(37, 1001)
    return equal(cupy.asnumpy(cupy.sort(cupy.asarray(a), axis=1)), numpy.sort(a, axis=1))


@check
def order():
    a = numpy.random.default_rng(6).permutation(20011).astype(numpy.int64)
    return equal(cupy.asnumpy(cupy.argsort(cupy.asarray(a))), numpy.argsort(a))


@check
def keys():
    a = integers(3, 4001, below=20)
    return equal(cupy.asnumpy(cupy.lexsort(cupy.asarray(a))), numpy.lexsort(a))


@check
def partition():
    a = numbers(9001)
    return equal(cupy.asnumpy(cupy.sort(cupy.partition(cupy.asarray(a), 100)[:100])), numpy.sort(a)[:100])


@check
def unique():
    a = integers(20000, below=3000)
    got, wanted = cupy.unique(cupy.asarray(a), return_counts=True), numpy.unique(a, return_counts=True)
    return equal(numpy.stack([cupy.asnumpy(part) for part in got]), numpy.stack(wanted))


@check
def histogram():
    a = numbers(30000)
    wanted, edges = numpy.histogram(a, bins=61, range=(-3, 3))
    return equal(cupy.asnumpy(cupy.histogram(cupy.asarray(a), bins=cupy.asarray(edges))[0]), wanted)


@check
def counts():
    a = integers(40000, below=513)
    return equal(cupy.asnumpy(cupy.bincount(cupy.asarray(a))), numpy.bincount(a))


@check
def search():
    a, b = numpy.sort(numbers(5000)), numbers(3000, seed=7)
    return equal(cupy.asnumpy(cupy.searchsorted(cupy.asarray(a), cupy.asarray(b))), numpy.searchsorted(a, b))


part("indices")


@check
def indices():
    a, at = numbers(200, 300), integers(500, below=200)
    x = cupy.asarray(a)
    said = equal(cupy.asnumpy(x[cupy.asarray(at), 7:90:2]), a[at, 7:90:2])
    return said + "; " + equal(cupy.asnumpy(x[x > 1]), a[a > 1])


@check
def scattered_sums():
    at, parts = integers(20000, below=100), integers(20000, seed=8, below=50)
    wanted = numpy.zeros(100, numpy.int32)
    numpy.add.at(wanted, at, parts)
    got = cupy.zeros(100, numpy.int32)
    cupy.add.at(got, cupy.asarray(at), cupy.asarray(parts))
    return equal(cupy.asnumpy(got), wanted)


@check
def axes():
    a = integers(7, 11, 13, 5)
    x = cupy.asarray(a)
    got = cupy.concatenate([x.transpose(3, 1, 0, 2).reshape(55, -1), cupy.roll(x, 3, axis=2).reshape(55, -1)], axis=1)
    wanted = numpy.concatenate(
        [a.transpose(3, 1, 0, 2).reshape(55, -1), numpy.roll(a, 3, axis=2).reshape(55, -1)], axis=1
    )
    return equal(cupy.asnumpy(got), wanted)


part("kernels")


@check
def elementwise_kernel():
    kernel = cupy.ElementwiseKernel("float32 x, float32 y", "float32 z", "z = x > y ? x * y : x - y", "chosen")
    a, b = numbers(9999), numbers(9999, seed=9)
    return equal(cupy.asnumpy(kernel(cupy.asarray(a), cupy.asarray(b))), numpy.where(a > b, a * b, a - b))


@check
def reduction_kernel():
    kernel = cupy.ReductionKernel("int64 x", "int64 y", "x * x", "a + b", "y = a", "0", "squares")
    a = integers(333, 444, kind=numpy.int64)
    return equal(cupy.asnumpy(kernel(cupy.asarray(a), axis=1)), (a * a).sum(axis=1))


@check
def fused():
    @cupy.fuse()
    def together(x, y):
        return cupy.sqrt(x * x + y * y) + cupy.maximum(x, y)

    a, b = numbers(7000), numbers(7000, seed=10)
    return near(
        cupy.asnumpy(together(cupy.asarray(a), cupy.asarray(b))),
        numpy.sqrt(a * a + b * b) + numpy.maximum(a, b),
        1e-6,
    )


RAW = r"""
extern "C" __global__ void transpose(const float *from, float *to, int rows, int columns) {
    __shared__ float tile[16][17];
    int column = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    if (row < rows && column < columns) tile[threadIdx.y][threadIdx.x] = from[row * columns + column];
    __syncthreads();
    column = blockIdx.y * 16 + threadIdx.x, row = blockIdx.x * 16 + threadIdx.y;
    if (row < columns && column < rows) to[row * rows + column] = tile[threadIdx.x][threadIdx.y];
}
extern "C" __global__ void count(const int *values, unsigned *counts, int number) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < number) atomicAdd(&counts[values[at] & 15], 1u);
}
"""


@check
def raw_kernel():
    a = numbers(100, 203)
    to = cupy.zeros((203, 100), F32)
    kernel = cupy.RawKernel(RAW, "transpose")
    kernel((13, 7), (16, 16), (cupy.asarray(a), to, numpy.int32(100), numpy.int32(203)))
    return equal(cupy.asnumpy(to), a.T)


@check
def raw_module():
    a = integers(10000)
    counts = cupy.zeros(16, numpy.uint32)
    kernel = cupy.RawModule(code=RAW).get_function("count")
    kernel((40,), (256,), (cupy.asarray(a), counts, numpy.int32(10000)))
    return equal(cupy.asnumpy(counts), numpy.bincount(a & 15, minlength=16))


@check
def streams():
    a = integers(40000)
    first, second = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    with first:
        x = cupy.asarray(a) * 3
        ready = first.record()
    second.wait_event(ready)
    with second:
        y = x + 1
    second.synchronize()
    return equal(cupy.asnumpy(y), a * 3 + 1)


@check
def managed_memory():
    before = cupy.cuda.get_allocator()
    cupy.cuda.set_allocator(cupy.cuda.MemoryPool(cupy.cuda.malloc_managed).malloc)
    try:
        a = integers(30000)
        return equal(cupy.asnumpy(cupy.asarray(a) + 5), a + 5)
    finally:
        cupy.cuda.set_allocator(before)


if __name__ == "__main__":
    main()
