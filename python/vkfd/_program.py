# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Finds the program ``vkfd`` that this package brought."""

import os
import shutil
import sysconfig


def find() -> str:
    """The path of the program.

    The scripts' directory of this Python comes first, then the user's scripts' directory
    (``pip install --user``), then ``PATH``. Raises FileNotFoundError if none has the program.
    """
    schemes = [sysconfig.get_path("scripts")]
    if hasattr(sysconfig, "get_preferred_scheme"):  # Python 3.10
        schemes.append(sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user")))
    for directory in schemes:
        program = os.path.join(directory, "vkfd")
        if os.access(program, os.X_OK):
            return program
    program = shutil.which("vkfd")
    if program is None:
        raise FileNotFoundError(
            f"the program vkfd is neither in {' nor '.join(schemes)} nor in PATH: reinstall the package"
        )
    return program
