# SPDX-License-Identifier: GPL-2.0 OR MIT
"""pytest's plugin for tinygrad's tests: each verdict in a line, an assembler, and an end when the GPU is lost.

A line of stdout that begins with "vkfd verdict" has "begin", "passed", "failed" or "skipped", the
test, its seconds and why, divided by tabulators; it is written when it is known, so that a test that
takes the program with it is the one that began last. VKFD_WITHOUT names a file with patterns of
tests that are not to be run.

tinygrad's tests of instructions hand assembly to a compiler class that wants AMD's comgr. LLVM
assembles the same text by tinygrad's class for LLVM. The bytes of the instructions are the tests'
own.
"""

import fnmatch
import os

import pytest

LOST = ("HW fault", "Memory access fault", "Device hang", "wait timeout", "Wait timeout")

# pytest, which takes stdout for itself, begins after this.
verdicts = os.fdopen(os.dup(1), "w", encoding="utf-8")
seconds = {}


def name_of(nodeid):
    """Class and test, without the file."""
    return nodeid.split("::", 1)[-1].replace("::", ".")


def tell(word, name, took=0.0, why=""):
    # One write: in a line of its own, whatever pytest has written before.
    verdicts.write(f"\nvkfd verdict\t{word}\t{name}\t{took:.3f}\t{' '.join(why.split())[:300]}\n")
    verdicts.flush()


def pytest_configure(config):
    config.option.tbstyle = "short"
    try:
        import tinygrad.runtime.support.compiler_amd as compiler_amd
        from tinygrad.runtime.support.compiler_llvm import AMDLLVMCompiler
    except ImportError:
        return

    def quoted(line):
        for plain, escape in (("\\", "\\5C"), ('"', "\\22"), ("\t", "\\09")):
            line = line.replace(plain, escape)
        return line

    class Assembler(AMDLLVMCompiler):
        def compile(self, src):
            lines = ['target triple = "amdgcn-amd-amdhsa"']
            lines += [f'module asm "{quoted(line)}"' for line in src.splitlines()]
            return super().compile("\n".join(lines) + "\n")

    compiler_amd.HIPCompiler = Assembler


def pytest_collection_modifyitems(config, items):
    try:
        with open(os.environ["VKFD_WITHOUT"], encoding="utf-8") as file:
            patterns = file.read().splitlines()
    except (KeyError, FileNotFoundError):
        return
    left_out = [item for item in items if any(fnmatch.fnmatchcase(name_of(item.nodeid), each) for each in patterns)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logstart(nodeid, location):
    tell("begin", name_of(nodeid))


def pytest_collectreport(report):
    if report.failed:
        tell("failed", "(collection)", 0.0, str(report.longrepr).strip().splitlines()[-1])


def pytest_runtest_logreport(report):
    name = name_of(report.nodeid)
    seconds[name] = seconds.get(name, 0.0) + report.duration
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else getattr(report, "wasxfail", "")
        tell("skipped", name, seconds[name], reason or "expected to fail")
    elif report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        why = crash.message if crash else str(report.longrepr)
        tell("failed", name, seconds[name], why)
        if any(words in why for words in LOST):
            # Nothing after it would run: whoever reads the verdicts begins anew.
            os._exit(3)
    elif report.when == "teardown" and name not in told:
        tell("passed", name, seconds[name])
    if report.skipped or report.failed:
        told.add(name)


told = set()
