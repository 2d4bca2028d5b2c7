# SPDX-License-Identifier: GPL-2.0 OR MIT
"""A pytest plugin: tests that need an AMD GPU are skipped, or run on a software GPU.

A test says what it needs by a marker::

    @pytest.mark.gpu
    def test_any_gpu(): ...

    @pytest.mark.gpu(target=["gfx90a", "gfx942"], count=2)
    def test_two_of_these(): ...

Without an AMD GPU these tests are skipped, with the reason. ``pytest --vkfd`` runs the whole
session under ``vkfd run``: Python starts again below it before any test module is imported, because
a program gets its GPUs when it starts. Fixtures, plugins and reports are those of an ordinary
session. Each worker of pytest-xdist has GPUs of its own.
"""

import os
import shlex
import sys
from typing import List, Optional

import pytest

from ._program import find
from .topology import Gpu, gpus

# Set in a session that runs under `vkfd run`; the value is the options that made it.
STARTED = "VKFD_PYTEST"

_SEEN = pytest.StashKey[List[Gpu]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("vkfd", "GPU tests on a software GPU (vkfd)")
    group.addoption(
        "--vkfd",
        action="store_true",
        help="run this session under `vkfd run`: the tests see AMD GPUs that are software",
    )
    group.addoption(
        "--vkfd-options",
        metavar="OPTIONS",
        help="options of `vkfd run`, such as '--target gfx90a --gpus 2'; implies --vkfd",
    )
    parser.addini("vkfd", "run each session under `vkfd run`", type="bool", default=False)
    parser.addini("vkfd_options", "options of `vkfd run` where --vkfd-options gives none", default="")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Starts Python again under ``vkfd run`` where the session asks for it."""
    wanted = _options(early_config)
    if wanted is None or STARTED in os.environ:
        return
    options = shlex.split(wanted)
    # A worker of pytest-xdist inherits its GPUs from the session that started it.
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    try:
        program = find()
    except FileNotFoundError as error:
        raise pytest.UsageError(f"--vkfd: {error}") from error
    # Captured output would be lost with this process's buffers.
    capture = early_config.pluginmanager.getplugin("capturemanager")
    if capture is not None:
        capture.stop_global_capturing()
    sys.stdout.flush()
    sys.stderr.flush()
    os.environ[STARTED] = wanted
    os.execv(program, [program, "run", *options, "--", *_this_python(early_config)])


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "gpu(target=None, count=1): the test needs `count` AMD GPUs; `target` names the targets it "
        "can run on, one or a list. Without them it is skipped; --vkfd provides them.",
    )
    config.stash[_SEEN] = gpus()


def pytest_report_header(config: pytest.Config) -> Optional[str]:
    seen = config.stash[_SEEN]
    if not seen:
        return None
    by = f"vkfd run {os.environ[STARTED]}".rstrip() if STARTED in os.environ else "KFD"
    return f"AMD GPUs: {', '.join(gpu.target for gpu in seen)} ({by})"


def pytest_runtest_setup(item: pytest.Item) -> None:
    marker = item.get_closest_marker("gpu")
    if marker is None:
        return
    reason = _lacks(item.config.stash[_SEEN], *marker.args, **marker.kwargs)
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture
def amd_gpus(pytestconfig: pytest.Config) -> List[Gpu]:
    """The AMD GPUs that this session sees, in the topology's order."""
    return list(pytestconfig.stash[_SEEN])


def _lacks(seen: List[Gpu], target=None, count: int = 1) -> Optional[str]:
    """Why a test that needs these GPUs cannot run, or None."""
    targets = [target] if isinstance(target, str) else list(target or [])
    fitting = [gpu for gpu in seen if not targets or gpu.target in targets]
    if len(fitting) >= count:
        return None
    need = f"{count} AMD GPU{'s' if count > 1 else ''}"
    if targets:
        need += f" of {' or '.join(targets)}"
    if not seen:
        return f"needs {need}: there is none, and --vkfd was not given"
    return f"needs {need}: there are {', '.join(gpu.target for gpu in seen)}"


def _options(config: pytest.Config) -> Optional[str]:
    """The options of ``vkfd run`` that a session asks for, or None if it does not."""
    known = config.known_args_namespace
    if known.vkfd_options is not None:
        return known.vkfd_options
    if known.vkfd or config.getini("vkfd"):
        return config.getini("vkfd_options")
    return None


def _this_python(config: pytest.Config) -> List[str]:
    """The command that started this session."""
    original = getattr(sys, "orig_argv", None)  # Python 3.10
    if original:
        return [sys.executable, *original[1:]]
    return [sys.executable, "-m", "pytest", *map(str, config.invocation_params.args)]
