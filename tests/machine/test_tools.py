"""Profilers: on the PATH, in the CUDA folders, broken, or missing."""

import importlib.metadata
import shutil
from pathlib import Path

import pytest

from attnbench.machine import tools

BIN = Path(__file__).parents[1] / "fakes" / "bin"


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """An empty root and a PATH without profilers."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    for key in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(key, raising=False)
    return tmp_path


def program(path, text="#!/bin/sh\necho 'NVIDIA Nsight Systems version 2025.5.1.121-255136380782v0'\n", mode=0o755):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def test_on_the_path(bare, monkeypatch):
    monkeypatch.setenv("PATH", f"{BIN}:/usr/bin:/bin")
    assert tools.find_program("ncu", bare) == tools.Profiler("ncu", "2025.3.1.0", str(BIN / "ncu"))


@pytest.mark.parametrize(
    "place",
    [
        "usr/local/cuda/bin",
        "usr/local/cuda-13.0/bin",
        "opt/nvidia/nsight-compute/2025.3.1",
        "opt/nvidia/nsight-systems/2025.5.1/bin",
    ],
)
def test_in_the_cuda_folders_with_the_line_for_the_path(bare, place):
    path = bare / place / "ncu"
    path.parent.mkdir(parents=True)
    shutil.copy(BIN / "ncu", path)
    found = tools.find_program("ncu", bare)
    assert (found.version, found.reason) == ("2025.3.1.0", None)
    assert found.export == f"export PATH={path.parent}:$PATH"


def test_the_newest_of_several(bare):
    for version in ("2024.6.2", "2025.10.1", "2025.9.9"):
        program(bare / "opt/nvidia/nsight-systems" / version / "bin/nsys")
    assert tools.find_program("nsys", bare).path == str(bare / "opt/nvidia/nsight-systems/2025.10.1/bin/nsys")


def test_the_users_own_cuda_comes_first(bare, monkeypatch):
    program(bare / "usr/local/cuda/bin/nsys")
    mine = program(bare / "mine/bin/nsys")
    monkeypatch.setenv("CUDA_HOME", str(bare / "mine"))
    found = tools.find_program("nsys", bare)
    assert (found.path, found.version) == (str(mine), "2025.5.1.121")


def test_not_there(bare, monkeypatch):
    monkeypatch.setenv("CUDA_PATH", "9" * 400)  # a name too long is no folder
    program(bare / "usr/local/cuda/bin/nsys", mode=0o644)  # a file that cannot be run is no program
    assert tools.find_program("nsys", bare) == tools.Profiler("nsys", reason="not on the PATH, nor in the CUDA folders")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("#!/bin/sh\necho 'no libfoo.so' >&2\nexit 127\n", "--version ended with code 127: no libfoo.so"),
        ("#!/bin/sh\nexit 3\n", "--version ended with code 3"),
        ("#!/nowhere/sh\n", "cannot be started: No such file or directory"),
    ],
)
def test_one_that_does_not_answer(bare, text, reason):
    program(bare / "usr/local/cuda/bin/ncu", text)
    found = tools.find_program("ncu", bare)
    assert (found.version, found.reason) == (None, reason)


def test_one_that_hangs(bare, monkeypatch):
    monkeypatch.setattr(tools, "ANSWER_S", 0.2)
    program(bare / "usr/local/cuda/bin/ncu", "#!/bin/sh\nexec sleep 999999\n")
    assert tools.find_program("ncu", bare).reason == "--version did not answer within 0.2 s"


def test_torch_profiler_on_a_build_for_cpus(monkeypatch):
    import torch

    monkeypatch.setattr(torch.profiler, "supported_activities", lambda: {torch.profiler.ProfilerActivity.CPU})
    found = tools.torch_profiler()
    assert (found.version, found.reason) == (torch.__version__, "this torch records CPU activity only")
    monkeypatch.setattr(
        torch.profiler, "supported_activities", lambda: set(torch.profiler.ProfilerActivity.__members__.values())
    )
    assert tools.torch_profiler().reason is None


def test_cupti_python_is_really_imported(monkeypatch):
    version = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: "13.0.1" if name == "cupti-python" else version(name)
    )
    found = tools.cupti_python()
    assert (found.version, found.reason) == ("13.0.1", "module cupti is not installed")


@pytest.mark.parametrize(
    ("text", "answer"),
    [("ResmanDebugLevel: 0\nRmProfilingAdminOnly: 1\n", False), ("RmProfilingAdminOnly: 0\n", True), ("", None)],
)
def test_who_may_read_the_counters(tmp_path, text, answer):
    (tmp_path / "params").write_text(text)
    assert tools.counters_for_all(tmp_path / "params") is answer
    assert tools.counters_for_all(tmp_path / "none") is None
