# SPDX-License-Identifier: GPL-2.0 OR MIT
"""What the source of PyTorch 2.6.0 needs to fit Debian sid's ROCm. Each fix has its reason.

A fixed file is made from its original, which is kept: a fix that changes is applied anew. A file is
written only if its text changes, so that nothing is compiled again without need.
"""

import pathlib
import re
import shutil

PAIRS = "pybind11 3 gives each pair a type of its own, and a function's results have one"
# (file, what is replaced once, by what, why)
FIXES = [
    (
        "cmake/Codegen.cmake",
        'set(OPT_FLAG "-O3 ")',
        'set(OPT_FLAG "-O1 ")',
        "the CPU's kernels have a level of their own, which would win",
    ),
    (
        "CMakeLists.txt",
        "set(CMAKE_LINK_WHAT_YOU_USE TRUE)",
        "set(CMAKE_LINK_WHAT_YOU_USE FALSE)",
        "it calls ldd, which the root does not have, behind each link",
    ),
    (
        "torch/csrc/jit/python/init.cpp",
        '"_jit_get_operation",\n      [](const std::string& op_name) {',
        '"_jit_get_operation",\n      [](const std::string& op_name) -> py::tuple {',
        PAIRS,
    ),
    (
        "torch/csrc/jit/python/init.cpp",
        "const py::kwargs& kwargs) {\n        py::list ns_method =\n            op_overload_packet",
        "const py::kwargs& kwargs) -> py::tuple {\n        py::list ns_method =\n            op_overload_packet",
        PAIRS,
    ),
    (
        "torch/csrc/utils/python_arg_parser.cpp",
        "? py::make_tuple(py::handle(self), py::handle(index))",
        "? py::tuple(py::make_tuple(py::handle(self), py::handle(index)))",
        PAIRS,
    ),
]
# Files of a feature that needs composable_kernel, which Debian's source does not have.
ABSENT = ["aten/src/ATen/native/hip/ck_*.hip", "aten/src/ATen/native/hip/bgemm_kernels/*.hip"]
# Our own files, and their places: the feature's functions, each of which says that it is not there.
ADDED = {"ck_absent.cpp": "aten/src/ATen/native/hip/ck_absent.cpp"}


def rocm_version() -> str:
    """The header that ROCm has and Debian has not, with the version of HIP."""
    text = pathlib.Path("/usr/include/hip/hip_version.h").read_text()
    numbers = [re.search(rf"HIP_VERSION_{part}\s+(\d+)", text).group(1) for part in ("MAJOR", "MINOR", "PATCH")]
    # HIP counts its builds in the third place; ROCm's is 3 in Debian's 6.4.3.
    numbers[2] = "3" if numbers[:2] == ["6", "4"] else numbers[2]
    lines = [f"#define ROCM_VERSION_{part} {number}" for part, number in zip(("MAJOR", "MINOR", "PATCH"), numbers)]
    return "\n".join(["#pragma once", *lines, f'#define ROCM_BUILD_INFO "{".".join(numbers)}"', ""])


def apply(source: pathlib.Path, originals: pathlib.Path, ours: pathlib.Path) -> None:
    for pattern in ABSENT:
        for file in source.glob(pattern):
            file.unlink()
    for name, place in ADDED.items():
        put(source / place, (ours / name).read_text())
    texts = {}
    for name, old, new, why in FIXES:
        original = originals / name
        if not original.exists():
            original.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, original)
        text = texts.setdefault(name, original.read_text())
        if text.count(old) != 1:
            raise SystemExit(f"{name}: {text.count(old)} places instead of one for: {why}")
        texts[name] = text.replace(old, new)
    for name, text in texts.items():
        put(source / name, text)


def put(file: pathlib.Path, text: str) -> None:
    if not file.exists() or file.read_text() != text:
        file.write_text(text)
