# SPDX-License-Identifier: GPL-2.0 OR MIT
"""The AMD GPUs that this process sees, from KFD's topology in sysfs."""

import os
from typing import List, NamedTuple

NODES = "/sys/class/kfd/kfd/topology/nodes"


class Gpu(NamedTuple):
    """A node of the topology that computes."""

    node: int
    """The node's number in the topology."""
    target: str
    """LLVM's name, such as ``gfx90a``."""


def target_name(version: int) -> str:
    """LLVM's name of a ``gfx_target_version``: the decimal digits are major, minor, stepping.

    Minor and stepping are one hexadecimal digit each: 90010 is ``gfx90a``.
    """
    major, minor, stepping = version // 10000, version // 100 % 100, version % 100
    return f"gfx{major}{minor:x}{stepping:x}"


def gpus() -> List[Gpu]:
    """The GPUs in the order of their nodes. Without KFD the list is empty."""
    try:
        nodes = sorted(int(name) for name in os.listdir(NODES) if name.isdigit())
    except OSError:
        return []
    found = []
    for node in nodes:
        try:
            with open(f"{NODES}/{node}/properties", encoding="ascii") as file:
                properties = dict(line.split() for line in file if len(line.split()) == 2)
        except OSError:
            continue
        if int(properties.get("simd_count", 0)) == 0:
            continue
        target = target_name(int(properties.get("gfx_target_version", 0)))
        found.append(Gpu(node, target))
    return found
