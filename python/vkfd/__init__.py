# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Runs ROCm programs on a machine without an AMD GPU.

The package holds the program ``vkfd``. ``python -m vkfd run -- PROGRAM`` runs a program on a
software GPU; :mod:`vkfd.pytest_plugin` runs a whole pytest session on one.
"""

from ._program import find

__all__ = ["find"]
