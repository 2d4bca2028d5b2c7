# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Stands in for a module of Python 3.11 that TensorFlow imports and a root of a newer Debian cannot have.

Debian 12 has it in a package that no newer Python goes with.
"""

import distutils
import shutil
import sys
import types

spawn = types.ModuleType("distutils.spawn")
spawn.find_executable = shutil.which
distutils.spawn = sys.modules["distutils.spawn"] = spawn
