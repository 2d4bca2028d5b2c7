# SPDX-License-Identifier: GPL-2.0 OR MIT
"""``python -m vkfd``: the program ``vkfd`` with the same arguments."""

import os
import sys

from ._program import find


def main() -> None:
    program = find()
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    main()
