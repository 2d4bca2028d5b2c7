# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Launches a kernel that compile.py has compiled, and compares what it writes with NumPy.

Usage: run.py CASE DIRECTORY LIBRARY, the directory with kernel.hsaco and kernel.json, and the
library HIP's. Prints what was compared; exit code 0, or 1 with what was wrong.
"""

import ctypes
import json
import math
import pathlib
import sys
from typing import NamedTuple

import numpy

from hip import Hip

F32 = numpy.float32


class Out(NamedTuple):
    """What a kernel is to write, and how far it may be from that. `start` is there before."""

    wanted: numpy.ndarray
    allowed: object = 0
    start: object = -1


class Case(NamedTuple):
    """Blocks of a grid, and the kernel's arguments: arrays to read, `Out`, and scalars."""

    grid: tuple
    arguments: list


def int32(value: int) -> ctypes.c_int32:
    return ctypes.c_int32(value)


def add(rng: numpy.random.Generator) -> Case:
    n = 5000
    x, y = (rng.standard_normal(n).astype(F32) for _ in range(2))
    return Case((-(-n // 256),), [x, y, Out(x + y), int32(n)])


def softmax(rng: numpy.random.Generator) -> Case:
    rows, columns = 6, 781
    x = (rng.standard_normal((rows, columns)) * 4).astype(F32)
    power = numpy.exp(x.astype(float) - x.max(axis=1, keepdims=True))
    wanted = power / power.sum(axis=1, keepdims=True)
    return Case((rows,), [x, Out(wanted.astype(F32), wanted * 4e-6), int32(columns)])


def layer_norm(rng: numpy.random.Generator) -> Case:
    rows, columns, epsilon = 6, 781, 1e-5
    shapes = (rows, columns), columns, columns
    x, weight, bias = (rng.standard_normal(shape).astype(numpy.float16) for shape in shapes)
    exact = x.astype(float)
    scale = 1 / numpy.sqrt(exact.var(axis=1, keepdims=True) + epsilon)
    wanted = (exact - exact.mean(axis=1, keepdims=True)) * scale * weight.astype(float) + bias
    # Both are rounded to half precision, and sums in float are not exact.
    out = Out(wanted.astype(numpy.float16), abs(wanted) * 2**-10 + 1e-5)
    return Case((rows,), [x, weight, bias, out, int32(columns), ctypes.c_float(epsilon)])


def bf16(values: numpy.ndarray) -> tuple:
    """As bits, and what they are."""
    bits = (values.astype(F32).view(numpy.uint32) >> 16).astype(numpy.uint16)
    return bits, (bits.astype(numpy.uint32) << 16).view(F32).astype(float)


def xf32(values: numpy.ndarray) -> tuple:
    """Values of ten bits behind the point, which rounding leaves as they are."""
    kept = (values.astype(F32).view(numpy.uint32) & 0xFFFFE000).view(F32)
    return kept, kept.astype(float)


def float8(exponent: int, bias: int):
    """AMD's eight-bit floats of gfx942: no infinities, no negative zero."""
    codes = numpy.arange(256)
    fraction = 7 - exponent
    power, low = (codes & 127) >> fraction, codes & ((1 << fraction) - 1)
    normal = (1 + low / 2**fraction) * 2.0 ** (power - bias)
    value = numpy.where(power == 0, low / 2**fraction * 2.0 ** (1 - bias), normal)
    table = numpy.where(codes < 128, value, -value)

    def pick(values: numpy.ndarray) -> tuple:
        # Codes at random; 0x80 is the NaN, and the largest would hide what the smallest add.
        bits = (abs(values) * 1e6).astype(numpy.uint32) % 256
        bits = numpy.where((bits & 127 == 0) | (abs(table[bits]) > 16), 8, bits).astype(numpy.uint8)
        return bits, table[bits]

    return pick


def plain(kind: type):
    def convert(values: numpy.ndarray) -> tuple:
        kept = values.astype(kind)
        return kept, kept.astype(float)

    return convert


def matmul(convert, block: int = 64, unit: float = 2**-24):
    """Sizes that are no multiples of a block, so that edges are masked."""

    def case(rng: numpy.random.Generator) -> Case:
        m, n, k = 80, 72, 96
        (a, left), (b, right) = (convert(rng.standard_normal(shape)) for shape in ((m, k), (k, n)))
        # Each of the k additions may round.
        allowed = abs(left) @ abs(right) * k * unit
        out = Out((left @ right).astype(numpy.float64 if unit < 2**-30 else F32), allowed)
        return Case((-(-m // block), -(-n // block)), [a, b, out, int32(m), int32(n), int32(k)])

    return case


def matmul_i8(rng: numpy.random.Generator) -> Case:
    m, n, k = 80, 72, 96
    a, b = (rng.integers(-128, 128, shape).astype(numpy.int8) for shape in ((m, k), (k, n)))
    wanted = a.astype(numpy.int32) @ b.astype(numpy.int32)
    return Case((2, 2), [a, b, Out(wanted), int32(m), int32(n), int32(k)])


def linear_i8(rng: numpy.random.Generator) -> Case:
    m, n, k = 80, 72, 96
    a, b = (rng.integers(-128, 128, shape).astype(numpy.int8) for shape in ((m, k), (k, n)))
    rows, columns = (rng.random(size).astype(F32) for size in (m, n))
    # The sum is exact in float, and each factor rounds once.
    total = (a.astype(numpy.int32) @ b.astype(numpy.int32)).astype(F32)
    wanted = total * rows[:, None] * columns[None, :]
    return Case((2, 2), [a, b, rows, columns, Out(wanted), int32(m), int32(n), int32(k)])


def attention(rng: numpy.random.Generator) -> Case:
    heads, length, depth = 2, 128, 64
    q, k, v = (rng.standard_normal((heads, length, depth)).astype(numpy.float16) for _ in range(3))
    score = q.astype(float) @ k.astype(float).transpose(0, 2, 1) / math.sqrt(depth)
    score = numpy.where(numpy.tri(length, dtype=bool), score, -numpy.inf)
    power = numpy.exp(score - score.max(axis=2, keepdims=True))
    weights = power / power.sum(axis=2, keepdims=True)
    wanted = weights @ v.astype(float)
    # The weights are rounded to half precision on the way, and the result is.
    allowed = weights @ abs(v.astype(float)) * 2**-10 + abs(wanted) * 2**-10 + 2**-14
    scale = ctypes.c_float(math.log2(math.e) / math.sqrt(depth))
    return Case((length // 64, heads), [q, k, v, Out(wanted.astype(numpy.float16), allowed), scale])


def reduce(rng: numpy.random.Generator) -> Case:
    x = rng.standard_normal((32, 128)).astype(F32)
    sums = x.astype(float).sum(axis=0)
    allowed = abs(x.astype(float)).sum(axis=0) * 32 * 2**-24
    where = x.argmax(axis=1).astype(numpy.int32)
    return Case((1,), [x, Out(sums.astype(F32), allowed), Out(x.max(axis=1)), Out(where)])


def atomics(rng: numpy.random.Generator) -> Case:
    n = 3000
    x = rng.integers(0, 1 << 20, n).astype(numpy.int32)
    counts = numpy.bincount(x & 63, minlength=64).astype(numpy.int32)
    # Whole numbers: their sum is exact in any order.
    sums = numpy.bincount(x & 63, x & 255, minlength=64).astype(F32)
    highest = numpy.array([x[x & 63 == bin].max() for bin in range(64)], numpy.int32)
    results = [Out(wanted, start=0) for wanted in (counts, sums, highest)]
    return Case((-(-n // 512),), [x, *results, int32(n)])


def lock(_rng: numpy.random.Generator) -> Case:
    programs, many = 8, 5
    mutex, total = numpy.zeros(1, numpy.int32), numpy.array([sum(range(programs)) * many], numpy.int32)
    return Case((programs,), [Out(mutex, start=0), Out(total, start=0), int32(many)])


def histogram(rng: numpy.random.Generator) -> Case:
    n = 900
    x = rng.integers(0, 128, n).astype(numpy.int32)
    return Case((1,), [x, Out(numpy.bincount(x, minlength=128).astype(numpy.int32)), int32(n)])


def scan(rng: numpy.random.Generator) -> Case:
    x = rng.integers(-(1 << 20), 1 << 20, 1024).astype(numpy.int32)
    highest = numpy.maximum.accumulate(x[::-1])[::-1]
    return Case((1,), [x, Out(numpy.cumsum(x, dtype=numpy.int32)), Out(highest)])


def sort(rng: numpy.random.Generator) -> Case:
    x = rng.integers(-(1 << 31), 1 << 31, 256).astype(numpy.int32)
    return Case((1,), [x, Out(numpy.sort(x))])


def gather(rng: numpy.random.Generator) -> Case:
    x = rng.standard_normal((16, 64)).astype(F32)
    index = rng.integers(0, 64, (16, 64)).astype(numpy.int32)
    return Case((1,), [x, index, Out(numpy.take_along_axis(x, index, axis=1))])


def transpose(rng: numpy.random.Generator) -> Case:
    x = rng.standard_normal((64, 32)).astype(numpy.float16)
    return Case((1,), [x, Out(numpy.ascontiguousarray(x.T))])


def random(_rng: numpy.random.Generator) -> Case:
    """Philox 4x32 of ten rounds, the first of its four words."""
    n, seed, low = 1024, 1234, 0xFFFFFFFF
    counter = [numpy.arange(n, dtype=numpy.uint64), *(numpy.zeros(n, numpy.uint64) for _ in range(3))]
    key = [seed, 0]
    for _ in range(10):
        first, second = counter[0] * numpy.uint64(0xD2511F53), counter[2] * numpy.uint64(0xCD9E8D57)
        high = numpy.uint64(32)
        counter = [
            (second >> high) ^ counter[1] ^ numpy.uint64(key[0]),
            second & numpy.uint64(low),
            (first >> high) ^ counter[3] ^ numpy.uint64(key[1]),
            first & numpy.uint64(low),
        ]
        key = [(key[0] + 0x9E3779B9) & low, (key[1] + 0xBB67AE85) & low]
    return Case((n // 256,), [int32(seed), Out(counter[0].astype(numpy.uint32).view(numpy.int32))])


def functions(rng: numpy.random.Generator) -> Case:
    n = 1000
    x = (rng.standard_normal(n) * 3).astype(F32)
    exact = x.astype(float)
    wanted = numpy.stack([
        numpy.exp(exact),
        numpy.log(abs(exact)),
        numpy.sin(exact),
        numpy.vectorize(math.erf)(exact),
        # NumPy's own is wrong on a processor that QEMU emulates.
        numpy.vectorize(math.tanh)(exact),
        numpy.arctan(exact),
        1 / numpy.sqrt(abs(exact)),
        numpy.expm1(exact),
    ])
    return Case((-(-n // 256),), [x, Out(wanted.astype(F32), abs(wanted) * 2e-6 + 2e-7), int32(n)])


def integers(rng: numpy.random.Generator) -> Case:
    n = 1000
    x, y = (rng.integers(-(1 << 63), 1 << 63, n) >> rng.integers(0, 63, n) for _ in range(2))
    y[y == 0] = 7
    quotient = numpy.sign(x) * numpy.sign(y) * (abs(x) // abs(y))
    rest = x - quotient * y
    wanted = numpy.stack([x * y, quotient, rest, x >> (y & 63), x ^ (y << 3), numpy.minimum(x, y)])
    return Case((-(-n // 256),), [x, y, Out(wanted), int32(n)])


CASES = {
    "add": add,
    "softmax": softmax,
    "layer_norm": layer_norm,
    "matmul_f16": matmul(plain(numpy.float16)),
    "matmul_bf16": matmul(bf16),
    "matmul_f32": matmul(plain(F32)),
    "matmul_f64": matmul(plain(float), block=32, unit=2**-53),
    "matmul_xf32": matmul(xf32),
    "matmul_f8": matmul(float8(exponent=4, bias=8)),
    "matmul_bf8": matmul(float8(exponent=5, bias=16)),
    "matmul_i8": matmul_i8,
    "linear_i8": linear_i8,
    "attention": attention,
    "reduce": reduce,
    "atomics": atomics,
    "lock": lock,
    "histogram": histogram,
    "scan": scan,
    "sort": sort,
    "gather": gather,
    "transpose": transpose,
    "random": random,
    "functions": functions,
    "integers": integers,
}


def wrong(out: Out, got: numpy.ndarray) -> str:
    """What is wrong with a result; empty if nothing is."""
    kind = numpy.float64 if got.dtype.kind == "f" else object
    away = abs(got.astype(kind) - out.wanted.astype(kind))
    bad = ~(away <= out.allowed)
    if not bad.any():
        return ""
    at = tuple(int(index) for index in numpy.argwhere(bad)[0])
    first = f"the first at {at}: {got[at]}, not {out.wanted[at]}"
    return f"{bad.sum()} of {bad.size} values are wrong, {first}"


def main() -> int:
    name, directory, library = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
    about = json.loads((directory / "kernel.json").read_text())
    case = CASES[name](numpy.random.default_rng(2))
    hip = Hip(library)
    function = hip.function((directory / "kernel.hsaco").read_bytes(), about["name"])
    passed, results = [], []
    for argument in case.arguments:
        if isinstance(argument, Out):
            got = numpy.full_like(argument.wanted, argument.start)
            passed.append(hip.copy_in(got))
            results.append((argument, passed[-1], got))
        elif isinstance(argument, numpy.ndarray):
            passed.append(hip.copy_in(argument))
        else:
            passed.append(argument)
    # The last two are memory for the kernel's own use and for profiles, which none of these has.
    passed += [ctypes.c_void_p(), ctypes.c_void_p()]
    hip.launch(function, case.grid, about["threads"], about["shared"], passed)
    for out, address, got in results:
        hip.copy_out(address, got)
        if said := wrong(out, got):
            print(f"FAILED: {name}: {said}")
            return 1
    print(f"{name}: {sum(got.size for *_, got in results)} values are right")
    print("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
