# SPDX-License-Identifier: GPL-2.0 OR MIT
"""PyTorch's own tests of a device, of which each part runs a selection.

Usage: own.py PART [TEST...]. Prints a line for each test: `ok`, `FAILED`, or `skipped` with PyTorch's
reason. The selection of a part is made by the tests' names, so that it is the same each time. With
tests named, these run instead. `all` instead of a test stands for all of the part.

A test that takes longer than PATIENCE seconds has failed. Those in LONG take minutes, and are
skipped unless they are named.
"""

import importlib
import os
import pathlib
import signal
import sys
import time
import unittest
import zlib

PATIENCE = 300
# Where the recipe puts the tests, beside the library.
TESTS = pathlib.Path("/source/own_tests")
# By part: the files, and of how many tests one runs.
PARTS = {
    "tensors": (["test_torch"], 4),
    "views": (["test_view_ops", "test_indexing", "test_shape_ops"], 3),
    "creation": (["test_tensor_creation_ops", "test_type_promotion", "test_complex"], 6),
    "elementwise": (["test_unary_ufuncs", "test_binary_ufuncs"], 60),
    "reductions": (["test_reductions", "test_sort_and_select", "test_scatter_gather_ops", "test_segment_reductions"], 20),
    "algebra": (["test_linalg", "test_spectral_ops"], 20),
    "networks": (["test_nn", "test_modules"], 25),
    "layers": (["nn.test_convolution", "nn.test_pooling", "nn.test_embedding", "nn.test_dropout"], 6),
    "operations": (["test_ops"], 250),
    "gradients": (["test_ops_gradients", "test_ops_fwd_gradients"], 60),
    "many": (["test_foreach", "test_optim"], 60),
}


LONG = {
    "test_cdist_cuda_backward_cuda",
    "test_index_add_large_inputs_cuda",
    "test_randperm_cuda",
    "test_gradgrad_nn_RNN_train_mode_cuda_float64",
    "test_baddbmm_cuda_float64",
    "test_Conv2d_large_workspace_cuda_float32",
}


def too_slow(*_):
    raise TimeoutError(f"the test took more than {PATIENCE} s")


def tests_of(module) -> list:
    """Each test of the device. The files' own `load_tests` wants them to be the running script."""
    loader, found = unittest.defaultTestLoader, []
    for name, made in vars(module).items():
        if isinstance(made, type) and issubclass(made, unittest.TestCase) and "CUDA" in name:
            found += list(loader.loadTestsFromTestCase(made))
    return found


def name_of(test) -> str:
    return test.id().replace("__main__.", "")


def selected(part: str, named: list) -> list:
    """Tests of the device, in the order of their names."""
    files, every = PARTS[part]
    sys.path[:0] = [str(TESTS), str(TESTS / "nn")]
    found = []
    for file in files:
        if not (TESTS / f"{file.replace('.', '/')}.py").exists():
            continue
        module = importlib.import_module(file.rpartition(".")[2])
        found += tests_of(module)
    tests = {name_of(test): test for test in found}
    if named == ["all"]:
        chosen = list(tests)
    elif named:
        chosen = named
    else:
        chosen = [name for name in tests if zlib.crc32(name.encode()) % every == 0]
    return [tests[name] for name in sorted(chosen)]


def outcome(test) -> tuple:
    """How a test ended, and why."""
    result = unittest.TestResult()
    signal.signal(signal.SIGALRM, too_slow)
    signal.alarm(PATIENCE)
    began = time.monotonic()
    try:
        unittest.TestSuite([test]).run(result)
    except TimeoutError as error:
        return "FAILED", str(error)
    finally:
        signal.alarm(0)
    took = f"{time.monotonic() - began:.1f} s"
    wrong = result.errors + result.failures
    if wrong:
        lines = [line for line in wrong[0][1].splitlines() if line.strip()]
        told = [line for line in lines if not line.startswith(" ") and "Error" in line]
        return "FAILED", (told or lines)[-1].strip()[:300]
    if result.unexpectedSuccesses:
        return "FAILED", "it passes, which PyTorch does not expect"
    if result.skipped or result.expectedFailures:
        return "skipped", (result.skipped or [(test, "it is expected to fail")])[0][1].splitlines()[0]
    return "ok", took


def main() -> int:
    part, *named = sys.argv[1:]
    os.environ.setdefault("PYTORCH_TEST_WITH_ROCM", "1")
    os.environ.setdefault("PYTORCH_TESTING_DEVICE_ONLY_FOR", "cuda")
    os.environ.setdefault("PYTORCH_PRINT_REPRO_ON_FAILURE", "0")
    # Asked for by a cache, and a root has no users.
    os.environ.setdefault("USER", "root")
    # PyTorch's files read the command line when they are imported.
    sys.argv[1:] = []
    failed = False
    for test in selected(part, named):
        is_left_out = not named and test._testMethodName in LONG
        how, why = ("skipped", "it takes minutes") if is_left_out else outcome(test)
        failed |= how == "FAILED"
        print(f"{how} {name_of(test)}: {why}", flush=True)
    print("end", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # PyTorch's tests leave threads and files behind.
    os._exit(code)
