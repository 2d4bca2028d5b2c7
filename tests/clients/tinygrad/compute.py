# SPDX-License-Identifier: GPL-2.0 OR MIT
"""tinygrad's AMD device on KFD computes: operations of several kinds on each GPU, compared with numpy.

Usage: compute.py GPUS. Prints what it did; exit code 0, or 1 with what was wrong.
"""

import sys

import numpy
from tinygrad import Tensor

TESTS = {
    "add": (lambda x, y: x + y, lambda x, y: x + y, 0),
    "product": (lambda x, y: x @ y, lambda x, y: x @ y, 1e-4),
    "exponential": (lambda x, y: x.exp(), lambda x, y: numpy.exp(x), 1e-5),
    "sum": (lambda x, y: (x * y).sum(axis=0), lambda x, y: (x * y).sum(axis=0), 1e-4),
    "maximum": (lambda x, y: x.maximum(y).max(axis=1), lambda x, y: numpy.maximum(x, y).max(axis=1), 0),
    "integers": (
        lambda x, y: (x * 1000).cast("int32") // 7,
        lambda x, y: numpy.floor_divide((x * numpy.float32(1000)).astype(numpy.int32), 7),
        1,
    ),
    "sorted": (lambda x, y: x.flatten().sort()[0], lambda x, y: numpy.sort(x.flatten()), 0),
}


def main() -> int:
    generator = numpy.random.default_rng(2)
    x = generator.standard_normal((67, 67)).astype(numpy.float32)
    y = generator.standard_normal((67, 67)).astype(numpy.float32)
    for number in range(int(sys.argv[1])):
        gpu = f"AMD:{number}"
        for name, (compute, expect, allowed) in TESTS.items():
            got = compute(Tensor(x, device=gpu), Tensor(y, device=gpu)).numpy()
            wrong = numpy.abs(got - expect(x, y)).max()
            if not wrong <= allowed:
                print(f"FAILED: {name} on {gpu} is wrong by {wrong}")
                return 1
        print(f"{len(TESTS)} operations on {gpu}: right")
    print("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
