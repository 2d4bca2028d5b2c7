# SPDX-License-Identifier: GPL-2.0 OR MIT
"""CuPy's own tests, of which each part runs a selection.

Usage: own.py PART [WORD...]. Prints a line for each test: `ok`, `FAILED`, or `skipped` with CuPy's
reason. The selection of a part is made by the tests' names, so that it is the same each time. With
words, all tests of the part with one of them in their names run instead. `all` stands for any name.

A test that takes longer than PATIENCE seconds has failed. Those in LEFT_OUT are skipped unless a word
names them.
"""

import os
import pathlib
import re
import signal
import sys
import time
import zlib

# pytest writes to the error output; the verdicts alone are on stdout.
verdicts = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)

import cupy
import pytest

PATIENCE = 300
# Where the recipe puts the tests, beside the library.
SOURCE = pathlib.Path("/source/own")
# By part: the directories and files below tests, and of how many tests one runs.
PARTS = {
    "core": (["cupy_tests/core_tests"], 20),
    "creation": (["cupy_tests/creation_tests"], 6),
    "indexing": (["cupy_tests/indexing_tests"], 1),
    "manipulation": (["cupy_tests/manipulation_tests", "cupy_tests/padding_tests"], 16),
    "math": (["cupy_tests/math_tests", "cupy_tests/logic_tests", "cupy_tests/binary_tests"], 300),
    "sorting": (["cupy_tests/sorting_tests"], 1),
    "statistics": (["cupy_tests/statistics_tests"], 15),
    "algebra": (["cupy_tests/linalg_tests"], 12),
    "random": (["cupy_tests/random_tests"], 4),
    "fourier": (["cupy_tests/fft_tests/test_fft.py"], 30),
}
# Words of tests' names, with the reason.
LEFT_OUT = {
    "backend='block'": "CuPy compiles its kernels by hipcc, which takes minutes",
}


def name_of(nodeid: str) -> str:
    """A name without places in memory, and without a colon that divides."""
    path, *rest = nodeid.split("::")
    file = path.removeprefix("tests/").removeprefix("cupy_tests/").removesuffix(".py").replace("/", ".")
    name = " ".join(".".join([file, *rest]).split())
    return re.sub(r"0x[0-9a-f]{6,}", "0x", name).replace(": ", ":")


def too_slow(*_):
    raise TimeoutError(f"the test took more than {PATIENCE} s")


class Verdicts:
    """pytest's plugin: it selects, and tells how each test ended."""

    def __init__(self, every: int, words: list):
        self.every, self.words = every, words
        self.failed = False
        self.ended = {}

    def tell(self, how: str, name: str, why: str) -> None:
        self.failed |= how == "FAILED"
        print(f"{how} {name}: {' '.join(why.split())[:300]}", file=verdicts, flush=True)

    def pytest_collection_modifyitems(self, items: list) -> None:
        def is_chosen(name: str) -> bool:
            if self.words:
                return self.words == ["all"] or any(word in name for word in self.words)
            return zlib.crc32(name.encode()) % self.every == 0

        chosen = {name: item for item in items if is_chosen(name := name_of(item.nodeid))}
        print(f"{len(chosen)} of {len(items)} tests", file=sys.stderr)
        items[:] = [chosen[name] for name in sorted(chosen)]

    def pytest_collectreport(self, report) -> None:
        if report.failed:
            self.tell("FAILED", f"{name_of(report.nodeid)} (collection)", str(report.longrepr).splitlines()[-1])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        name = name_of(item.nodeid)
        why = next((why for word, why in LEFT_OUT.items() if word in name), None)
        if why and not self.words:
            item.add_marker(pytest.mark.skip(reason=why))
        print(f"begins {name}", file=sys.stderr, flush=True)
        self.began = time.monotonic()
        signal.signal(signal.SIGALRM, too_slow)
        signal.alarm(PATIENCE)
        try:
            return (yield)
        finally:
            signal.alarm(0)

    def pytest_runtest_logreport(self, report) -> None:
        name = name_of(report.nodeid)
        how, why = self.ended.get(name, ("ok", ""))
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            how, why = "FAILED", crash.message if crash else str(report.longrepr)
        elif report.skipped and how == "ok":
            place = report.longrepr
            how, why = "skipped", place[2] if isinstance(place, tuple) else getattr(report, "wasxfail", "")
            why = why or "it is expected to fail"
        self.ended[name] = how, why
        if report.when == "teardown":
            self.tell(how, name, why or f"{time.monotonic() - self.began:.1f} s")


def main() -> int:
    part, *words = sys.argv[1:]
    paths, every = PARTS[part]
    # CuPy starts hipcc without a target. hipcc's script that finds one needs more than a root has.
    name = cupy.cuda.runtime.getDeviceProperties(0)["gcnArchName"].decode()
    os.environ["HCC_AMDGPU_TARGET"] = name.partition(":")[0]
    seen = Verdicts(every, words)
    options = ["-q", "--no-header", "--tb=short", "-p", "no:cacheprovider", "-m", "not slow"]
    places = [f"--rootdir={SOURCE}", f"--config-file={SOURCE}/pyproject.toml"]
    pytest.main([*options, *places, *(str(SOURCE / "tests" / path) for path in paths)], plugins=[seen])
    print("end", file=verdicts, flush=True)
    return 1 if seen.failed else 0


if __name__ == "__main__":
    code = main()
    # CuPy's tests leave threads and files behind.
    os._exit(code)
