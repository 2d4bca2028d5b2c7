# SPDX-License-Identifier: GPL-2.0 OR MIT
"""The plugin in sessions of its own, as its users start it. `vkfd` has to be installed."""

import pytest

pytest_plugins = ["pytester"]

TESTS = """
    import os
    import pytest

    @pytest.mark.gpu
    def test_one(amd_gpus):
        assert len(amd_gpus) >= 1
        os.close(os.open("/dev/kfd", os.O_RDWR))

    @pytest.mark.gpu(target=["gfx90a", "gfx942"], count=2)
    def test_two(amd_gpus):
        assert [gpu.target for gpu in amd_gpus] == ["gfx90a", "gfx90a"]

    def test_none():
        print("an ordinary test")
"""


@pytest.fixture(autouse=True)
def no_gpu_of_this_machine(monkeypatch):
    monkeypatch.delenv("VKFD_PYTEST", raising=False)


def outcomes(result):
    return {name: count for name, count in result.parseoutcomes().items() if name != "warnings"}


def test_without_a_gpu_its_tests_are_skipped_with_the_reason(pytester):
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_subprocess("-rs", "--strict-markers")
    assert outcomes(result) == {"passed": 1, "skipped": 2}
    result.stdout.fnmatch_lines(
        [
            "*needs 1 AMD GPU: there is none, and --vkfd was not given*",
            "*needs 2 AMD GPUs of gfx90a or gfx942: there is none*",
        ]
    )


def test_under_vkfd_they_run(pytester):
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_subprocess("-rs", "--vkfd")
    assert outcomes(result) == {"passed": 2, "skipped": 1}
    result.stdout.fnmatch_lines(
        [
            "AMD GPUs: gfx900 (vkfd run)",
            "*needs 2 AMD GPUs of gfx90a or gfx942: there are gfx900*",
        ]
    )


def test_options_choose_the_machine(pytester):
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_subprocess("--vkfd-options", "--target gfx90a --gpus 2")
    assert outcomes(result) == {"passed": 3}
    result.stdout.fnmatch_lines(["AMD GPUs: gfx90a, gfx90a (vkfd run --target gfx90a --gpus 2)"])


def test_a_projects_settings_choose_it_too(pytester):
    pytester.makepyfile(TESTS)
    pytester.makeini("[pytest]\nvkfd = true\nvkfd_options = --target gfx942 --gpus 1\n")
    result = pytester.runpytest_subprocess()
    assert outcomes(result) == {"passed": 2, "skipped": 1}


def test_output_and_exit_status_are_those_of_the_session(pytester):
    pytester.makepyfile("def test_it():\n    print('seen once')\n    assert False\n")
    result = pytester.runpytest_subprocess("--vkfd")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert result.stdout.str().count("seen once") == 2, "in the source line and in the captured output"


def test_a_wrong_option_is_said_by_vkfd(pytester):
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_subprocess("--vkfd-options", "--target gfx1")
    assert result.ret != 0
    result.stderr.fnmatch_lines(["*gfx1*"])
