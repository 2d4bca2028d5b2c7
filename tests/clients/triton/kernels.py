# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Kernels in Triton, of the kinds that inference and training use."""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


@triton.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    inside = at < columns
    row = tl.program_id(0) * columns
    value = tl.load(x + row + at, mask=inside, other=-float("inf"))
    power = tl.exp(value - tl.max(value, axis=0))
    tl.store(out + row + at, power / tl.sum(power, axis=0), mask=inside)


@triton.jit
def layer_norm(x, weight, bias, out, columns, epsilon, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    inside = at < columns
    row = tl.program_id(0) * columns
    value = tl.load(x + row + at, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(value, axis=0) / columns
    away = tl.where(inside, value - mean, 0.0)
    scale = 1 / tl.sqrt(tl.sum(away * away, axis=0) / columns + epsilon)
    result = away * scale * tl.load(weight + at, mask=inside) + tl.load(bias + at, mask=inside)
    tl.store(out + row + at, result.to(tl.float16), mask=inside)


@triton.jit
def matmul(
    a, b, c, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SUM: tl.constexpr, HOW: tl.constexpr,
):
    """Row-major C = A B; K is a multiple of BK."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=SUM)
    above, left = rows[:, None] < M, columns[None, :] < N
    for k in range(0, K, BK):
        x = tl.load(a + rows[:, None] * K + (depth[None, :] + k), mask=above, other=0.0)
        y = tl.load(b + (depth[:, None] + k) * N + columns[None, :], mask=left, other=0.0)
        total = tl.dot(x, y, total, input_precision=HOW, out_dtype=SUM)
    tl.store(c + rows[:, None] * N + columns[None, :], total, mask=above & left)


@triton.jit
def linear(a, b, rows_by, columns_by, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """A product of whole numbers that stand for real ones, as quantised inference has it."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.int32)
    above, left = rows[:, None] < M, columns[None, :] < N
    for k in range(0, K, BK):
        x = tl.load(a + rows[:, None] * K + (depth[None, :] + k), mask=above, other=0)
        y = tl.load(b + (depth[:, None] + k) * N + columns[None, :], mask=left, other=0)
        total = tl.dot(x, y, total, out_dtype=tl.int32)
    by = tl.load(rows_by + rows, mask=rows < M, other=0.0)
    value = total.to(tl.float32) * by[:, None]
    value *= tl.load(columns_by + columns, mask=columns < N, other=0.0)[None, :]
    tl.store(c + rows[:, None] * N + columns[None, :], value, mask=above & left)


@triton.jit
def attention(
    q, k, v, out, scale,
    LENGTH: tl.constexpr, DEPTH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):
    """Flash attention, forward and causal: a head is LENGTH x DEPTH."""
    head = tl.program_id(1) * LENGTH * DEPTH
    start = tl.program_id(0) * BM
    rows = start + tl.arange(0, BM)
    depth = tl.arange(0, DEPTH)
    query = tl.load(q + head + rows[:, None] * DEPTH + depth[None, :])
    highest = tl.full((BM,), -float("inf"), dtype=tl.float32)
    weight = tl.zeros((BM,), dtype=tl.float32)
    total = tl.zeros((BM, DEPTH), dtype=tl.float32)
    for at in range(0, start + BM, BN):
        columns = at + tl.arange(0, BN)
        keys = tl.load(k + head + columns[None, :] * DEPTH + depth[:, None])
        score = tl.dot(query, keys) * scale
        score = tl.where(rows[:, None] >= columns[None, :], score, -float("inf"))
        now = tl.maximum(highest, tl.max(score, axis=1))
        power = tl.exp2(score - now[:, None])
        fade = tl.exp2(highest - now)
        weight = weight * fade + tl.sum(power, axis=1)
        values = tl.load(v + head + columns[:, None] * DEPTH + depth[None, :])
        total = tl.dot(power.to(tl.float16), values, total * fade[:, None])
        highest = now
    result = total / weight[:, None]
    tl.store(out + head + rows[:, None] * DEPTH + depth[None, :], result.to(tl.float16))


@triton.jit
def reduce(x, sums, highest, where, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    value = tl.load(x + rows[:, None] * COLUMNS + columns[None, :])
    tl.store(sums + columns, tl.sum(value, axis=0))
    tl.store(highest + rows, tl.max(value, axis=1))
    tl.store(where + rows, tl.argmax(value, axis=1))


@triton.jit
def atomics(x, counts, sums, highest, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    value = tl.load(x + at, mask=inside, other=0)
    bin = value & 63
    tl.atomic_add(counts + bin, 1, mask=inside)
    tl.atomic_add(sums + bin, (value & 255).to(tl.float32), mask=inside)
    tl.atomic_max(highest + bin, value, mask=inside)


@triton.jit
def lock(mutex, total, many):
    """Each program adds to what only the holder of a lock may change."""
    for _ in range(many):
        while tl.atomic_cas(mutex, 0, 1) == 1:
            pass
        tl.store(total, tl.load(total, volatile=True) + tl.program_id(0))
        tl.debug_barrier()
        tl.atomic_xchg(mutex, 0)


@triton.jit
def histogram(x, out, n, BLOCK: tl.constexpr, BINS: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n, other=0)
    tl.store(out + tl.arange(0, BINS), tl.histogram(value, BINS, mask=at < n))


@triton.jit
def scan(x, sums, highest, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at)
    tl.store(sums + at, tl.cumsum(value, 0))
    tl.store(highest + at, tl.associative_scan(value, 0, _greater, reverse=True))


@triton.jit
def _greater(x, y):
    return tl.maximum(x, y)


@triton.jit
def sort(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.sort(tl.load(x + at)))


@triton.jit
def gather(x, index, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    at = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    tl.store(out + at, tl.gather(tl.load(x + at), tl.load(index + at), 1))


@triton.jit
def transpose(x, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    value = tl.load(x + rows[:, None] * COLUMNS + columns[None, :])
    tl.store(out + columns[:, None] * ROWS + rows[None, :], tl.trans(value))


@triton.jit
def random(seed, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.randint(seed, at))


@triton.jit
def functions(x, out, n, BLOCK: tl.constexpr):
    """A row for each function."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    value = tl.load(x + at, mask=inside)
    tl.store(out + at, tl.exp(value), mask=inside)
    tl.store(out + n + at, tl.log(tl.abs(value)), mask=inside)
    tl.store(out + 2 * n + at, tl.sin(value), mask=inside)
    tl.store(out + 3 * n + at, tl.erf(value), mask=inside)
    tl.store(out + 4 * n + at, libdevice.tanh(value), mask=inside)
    tl.store(out + 5 * n + at, libdevice.atan(value), mask=inside)
    tl.store(out + 6 * n + at, tl.rsqrt(tl.abs(value)), mask=inside)
    tl.store(out + 7 * n + at, libdevice.expm1(value), mask=inside)


@triton.jit
def integers(x, y, out, n, BLOCK: tl.constexpr):
    """A row for each operation, on 64 bits."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    a = tl.load(x + at, mask=inside)
    b = tl.load(y + at, mask=inside, other=1)
    tl.store(out + at, a * b, mask=inside)
    tl.store(out + n + at, a // b, mask=inside)
    tl.store(out + 2 * n + at, a % b, mask=inside)
    tl.store(out + 3 * n + at, a >> (b & 63), mask=inside)
    tl.store(out + 4 * n + at, a ^ (b << 3), mask=inside)
    tl.store(out + 5 * n + at, tl.minimum(a, b), mask=inside)
