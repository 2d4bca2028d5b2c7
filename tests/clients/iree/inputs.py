# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Inputs for a function of functions.mlir, the same each time.

Usage: inputs.py FUNCTION DIRECTORY. Writes 0.npy and, if it has two inputs, 1.npy.
"""

import pathlib
import sys

import numpy

F16, F32 = numpy.float16, numpy.float32
INPUTS = {
    "activation": [(F32, 1000)],
    "convolution": [(F32, (1, 18, 18, 8)), (F32, (3, 3, 8, 16))],
    "matmul_f16": [(F16, (128, 256)), (F16, (256, 64))],
    "matmul_f32": [(F32, (128, 256)), (F32, (256, 64))],
    "softmax": [(F32, (16, 100))],
}

generator = numpy.random.default_rng(2)
for number, (kind, shape) in enumerate(INPUTS[sys.argv[1]]):
    values = generator.standard_normal(shape).astype(kind)
    numpy.save(pathlib.Path(sys.argv[2]) / f"{number}.npy", values)
