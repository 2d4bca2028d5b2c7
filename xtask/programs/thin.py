# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Leaves each N-th quick test of the file that rocBLAS's or rocSPARSE's test program reads its tests
from: thin.py FILE N OUT.

The file is the library's name, a record that tells the layout of all, the name with its letters'
case swapped, and records, one for each test. The library's own program refuses another layout."""

import sys

file, each, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
with open(file, "rb") as tests, open(out, "wb") as left:
    start = tests.read(1 << 16)
    name = start[: start.index(0) + 1]
    size = start.index(name.swapcase()) - len(name)
    left.write(start[: size + 2 * len(name)])
    tests.seek(left.tell())
    quick = 0
    while record := tests.read(size):
        if b"quick\0" in record:
            if quick % each == 0:
                left.write(record)
            quick += 1
