# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Compiles a kernel for a GPU that is not here.

Usage: compile.py CASE TARGET DIRECTORY. Writes kernel.hsaco, and kernel.json with what its launch
needs. Fails if a product of matrices was compiled without the target's matrix instruction.
"""

import json
import pathlib
import re
import sys

import triton.language as tl
from triton import compile as compile_kernel
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import kernels

# Pointers are aligned to 16 bytes, and their buffers smaller than 2 GiB: so Triton finds PyTorch's.
POINTER = [["tt.divisibility", 16], ["tt.pointer_range", 32]]
F32, F16, I32, I64, INT, FLOAT = "*fp32", "*fp16", "*i32", "*i64", "i32", "fp32"
BLOCKS = {"BM": 64, "BN": 64, "BK": 32}
SIZES = {"M": INT, "N": INT, "K": INT}


def plain(kernel, types, **sizes):
    return kernel, types, sizes, {}


def matrix(mfma, wmma=None, cdna="gfx9"):
    """The instruction that is expected of products, by the beginning of the target's name."""
    of_mfma = {cdna: rf"v_mfma_\w+?x[\dx]+_?{mfma}"}
    return of_mfma | ({"gfx11": rf"v_wmma_\w+?_16x16x16_{wmma}"} if wmma else {})


def product(of, instruction, into="fp32", sum=tl.float32, how="ieee", **sizes):
    """A product of matrices of a type."""
    types = {"a": f"*{of}", "b": f"*{of}", "c": f"*{into}", **SIZES}
    return kernels.matmul, types, {**BLOCKS, **sizes, "SUM": sum, "HOW": how}, instruction


CASES = {
    "add": plain(kernels.add, {"x": F32, "y": F32, "out": F32, "n": INT}, BLOCK=256),
    "softmax": plain(kernels.softmax, {"x": F32, "out": F32, "columns": INT}, BLOCK=1024),
    "layer_norm": plain(
        kernels.layer_norm,
        {"x": F16, "weight": F16, "bias": F16, "out": F16, "columns": INT, "epsilon": FLOAT},
        BLOCK=1024,
    ),
    "matmul_f16": product("fp16", matrix("f16", "f16")),
    "matmul_bf16": product("bf16", matrix("bf16", "bf16")),
    # gfx11 has no matrix instruction for these.
    "matmul_f32": product("fp32", matrix("f32")),
    "matmul_f64": product("fp64", matrix("f64"), into="fp64", sum=tl.float64, BM=32, BN=32),
    # Nor has gfx90a for these.
    "matmul_xf32": product("fp32", matrix("xf32", cdna="gfx942"), how="tf32"),
    "matmul_f8": product("fp8e4b8", matrix("fp8_fp8", cdna="gfx942")),
    "matmul_bf8": product("fp8e5b16", matrix("bf8_bf8", cdna="gfx942")),
    "matmul_i8": product("i8", matrix("i8", "iu8"), into="i32", sum=tl.int32),
    "linear_i8": (
        kernels.linear,
        {"a": "*i8", "b": "*i8", "rows_by": F32, "columns_by": F32, "c": F32, **SIZES},
        BLOCKS,
        matrix("i8", "iu8"),
    ),
    "attention": (
        kernels.attention,
        {"q": F16, "k": F16, "v": F16, "out": F16, "scale": FLOAT},
        {"LENGTH": 128, "DEPTH": 64, "BM": 64, "BN": 32},
        matrix("f16", "f16"),
    ),
    "reduce": plain(
        kernels.reduce,
        {"x": F32, "sums": F32, "highest": F32, "where": I32},
        ROWS=32,
        COLUMNS=128,
    ),
    "atomics": plain(
        kernels.atomics,
        {"x": I32, "counts": I32, "sums": F32, "highest": I32, "n": INT},
        BLOCK=512,
    ),
    "lock": plain(kernels.lock, {"mutex": I32, "total": I32, "many": INT}),
    "histogram": plain(kernels.histogram, {"x": I32, "out": I32, "n": INT}, BLOCK=1024, BINS=128),
    "scan": plain(kernels.scan, {"x": I32, "sums": I32, "highest": I32}, BLOCK=1024),
    "sort": plain(kernels.sort, {"x": I32, "out": I32}, BLOCK=256),
    "gather": plain(kernels.gather, {"x": F32, "index": I32, "out": F32}, ROWS=16, COLUMNS=64),
    "transpose": plain(kernels.transpose, {"x": F16, "out": F16}, ROWS=64, COLUMNS=32),
    "random": plain(kernels.random, {"seed": INT, "out": I32}, BLOCK=256),
    "functions": plain(kernels.functions, {"x": F32, "out": F32, "n": INT}, BLOCK=256),
    "integers": plain(kernels.integers, {"x": I64, "y": I64, "out": I64, "n": INT}, BLOCK=256),
}


def main() -> int:
    case, target, directory = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
    kernel, types, sizes, expected = CASES[case]
    wave = 64 if target.startswith("gfx9") else 32
    names = kernel.arg_names
    signature = {name: types.get(name, "constexpr") for name in names}
    constants = {(names.index(name),): value for name, value in sizes.items()}
    pointers = {(at,): POINTER for at, name in enumerate(names) if signature[name].startswith("*")}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=pointers)
    built = compile_kernel(source, target=GPUTarget("hip", target, wave), options={"num_warps": 4})
    code = built.asm["amdgcn"]
    for prefix, instruction in expected.items():
        if target.startswith(prefix) and not re.search(instruction, code):
            print(f"error: {case} for {target} has no {instruction}", file=sys.stderr)
            return 1
    about = built.metadata
    scratch = about.global_scratch_size + about.profile_scratch_size
    if scratch:
        print(f"error: {case} for {target} wants {scratch} bytes of its own", file=sys.stderr)
        return 1
    launch = {"name": about.name, "threads": wave * about.num_warps, "shared": about.shared}
    (directory / "kernel.hsaco").write_bytes(built.asm["hsaco"])
    (directory / "kernel.json").write_text(json.dumps(launch))
    return 0


if __name__ == "__main__":
    sys.exit(main())
