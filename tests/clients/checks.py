# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Named checks of a framework, each of which ends in a line.

A check compares what the GPU gave with what is right, by `equal` and `near`, and returns how. `main`
prints `ok NAME: how` or `FAILED NAME: why` for each, and `end` when all have run. `part` begins a
part of a file; its name stands for its checks.
"""

import sys
import time
import traceback

import numpy

# By name, and the names of each part.
CHECKS, PARTS = {}, {}


class Wrong(Exception):
    """What a check says of a wrong result."""


def part(name: str) -> None:
    """The checks from here on are of this part."""
    PARTS[name] = []


def register(name: str, function) -> None:
    assert name not in CHECKS, name
    CHECKS[name] = function
    PARTS[list(PARTS)[-1]].append(name)


def check(function):
    """Registers a check under its name."""
    register(function.__name__, function)
    return function


def telling(wanted) -> None:
    """Expected values that say nothing make no check."""
    if wanted.size == 0 or not numpy.isfinite(numpy.asarray(wanted, dtype=complex)).all():
        raise Wrong(f"the expected values say nothing: {wanted}")


def same_form(got, wanted):
    """Both as arrays of one shape."""
    got, wanted = numpy.asarray(got), numpy.asarray(wanted)
    if got.shape != wanted.shape:
        raise Wrong(f"shape {got.shape} instead of {wanted.shape}")
    telling(wanted)
    return got, wanted


def equal(got, wanted) -> str:
    """Each bit."""
    got, wanted = same_form(got, wanted)
    wrong = numpy.flatnonzero(got.ravel() != wanted.ravel())
    if len(wrong):
        at = wrong[0]
        raise Wrong(f"{len(wrong)} of {got.size} differ, at {at}: {got.ravel()[at]} instead of {wanted.ravel()[at]}")
    return f"{got.size} values equal"


def near(got, wanted, allowed=1e-5) -> str:
    """As far apart as `allowed` of the largest at most."""
    got, wanted = same_form(got, wanted)
    got, wanted = (array.astype(complex) for array in (got, wanted))
    size = numpy.abs(wanted).max()
    apart = numpy.abs(got - wanted).max() / (size if size else 1)
    if not apart <= allowed:
        raise Wrong(f"{got.size} values are up to {apart:.1e} of the largest apart, {allowed:.0e} is allowed")
    return f"{got.size} values, at most {apart:.1e} of the largest apart"


def run(names) -> int:
    """Runs the named checks and parts, all without names; the number of wrong ones."""
    wrong = 0
    for name in [each for name in names or PARTS for each in PARTS.get(name, [name])]:
        began = time.monotonic()
        try:
            how = CHECKS[name]()
            print(f"ok {name}: {how} ({time.monotonic() - began:.1f} s)", flush=True)
        except Wrong as error:
            wrong += 1
            print(f"FAILED {name}: {error}", flush=True)
        except Exception as error:  # A check that cannot run is wrong, and the next ones run.
            wrong += 1
            traceback.print_exc()
            said = str(error).strip().splitlines() or [""]
            print(f"FAILED {name}: {type(error).__name__}: {said[0][:300]}", flush=True)
    print("end", flush=True)
    return wrong


def main() -> None:
    """For a script: the checks that its arguments name."""
    sys.exit(1 if run(sys.argv[1:]) else 0)
