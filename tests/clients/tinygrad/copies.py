# SPDX-License-Identifier: GPL-2.0 OR MIT
"""tinygrad's AMD device on KFD: arrays of several sizes go to each GPU, on to the next one, and back, and are compared byte for byte.

Usage: copies.py GPUS. Prints what it did; exit code 0, or 1 with what was wrong.
"""

import sys

import numpy
from tinygrad import Tensor
from tinygrad.device import Device

SIZES = [1, 255, 4096, 4097, 65_536 + 3, 1 << 20, (3 << 20) + 7, 40 << 20]


def main() -> int:
    gpus = ["AMD" if i == 0 else f"AMD:{i}" for i in range(int(sys.argv[1]))]
    generator = numpy.random.default_rng(1)
    for gpu in gpus:
        print(gpu, "is", ".".join(str(part) for part in Device[gpu].target))
    copied = 0
    for size in SIZES:
        sent = generator.integers(0, 256, size, dtype=numpy.uint8)
        for first in gpus:
            tensor = Tensor(sent, device=first).realize()
            for gpu in gpus:
                tensor = tensor.to(gpu).realize()
            got = tensor.numpy()
            wrong = numpy.flatnonzero(got != sent)
            if wrong.size:
                at = wrong[0]
                print(f"FAILED: {wrong.size} of {size} bytes differ, the first at {at}: {got[at]:#x} instead of {sent[at]:#x}")
                return 1
            copied += size
    print(f"{copied} bytes to {len(gpus)} GPUs and back, all bytes right")
    print("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
