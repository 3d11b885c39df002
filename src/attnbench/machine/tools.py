"""Find the working profilers of this machine, and the way to one that is not on the PATH."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from attnbench.machine.imports import try_imports

FOLDERS = (
    "usr/local/cuda/bin",
    "usr/local/cuda-*/bin",
    "opt/nvidia/nsight-compute/*",
    "opt/nvidia/nsight-systems/*/bin",
    "opt/nvidia/nsight-systems/*",
)
"""Folders where NVIDIA's installers put ncu and nsys, relative to the root."""

DRIVER_PARAMS = Path("/proc/driver/nvidia/params")
ANSWER_S = 20.0


@dataclass(frozen=True, slots=True)
class Profiler:
    """One profiler; it works if `reason` is None."""

    name: str
    version: str | None = None
    path: str | None = None
    "path of the program"
    export: str | None = None
    "command that puts a program found elsewhere on the PATH"
    reason: str | None = None
    "why it does not work"


def profilers() -> list[Profiler]:
    """Return ncu, nsys, torch.profiler and cupti-python, each tried."""
    return [find_program("ncu"), find_program("nsys"), torch_profiler(), cupti_python()]


def find_program(name: str, root: Path = Path("/")) -> Profiler:
    """Search a profiler on the PATH, then in the CUDA folders, newest first, and ask for its version.

    Args:
        name: ncu or nsys.
        root: root of the file system.
    """
    on_path = shutil.which(name)
    path = on_path or _in_folders(name, root)
    if path is None:
        return Profiler(name, reason="not on the PATH, nor in the CUDA folders")
    export = None if on_path else f"export PATH={Path(path).parent}:$PATH"
    version, reason = _ask_version(path)
    return Profiler(name, version, path, export, reason)


def torch_profiler() -> Profiler:
    """Return torch.profiler, with or without CUDA activity."""
    import torch

    kinds = torch.profiler.supported_activities()
    reason = None if torch.profiler.ProfilerActivity.CUDA in kinds else "this torch records CPU activity only"
    return Profiler("torch.profiler", str(torch.__version__), reason=reason)


def cupti_python() -> Profiler:
    """Return cupti-python, imported in a process of its own: it must match the CUDA libraries."""
    try:
        version = importlib.metadata.version("cupti-python")
    except importlib.metadata.PackageNotFoundError:
        return Profiler("cupti-python", reason="not installed; pip install cupti-python")
    return Profiler("cupti-python", version, reason=try_imports(["cupti.cupti"])["cupti.cupti"].reason)


def counters_for_all(params: Path = DRIVER_PARAMS) -> bool | None:
    """Return whether a plain user may read the hardware counters that ncu needs; None if the driver does not say."""
    try:
        match = re.search(r"^RmProfilingAdminOnly:\s*(\d)", params.read_text(), re.MULTILINE)
    except OSError:
        return None
    return match[1] == "0" if match else None


def _in_folders(name: str, root: Path) -> str | None:
    homes = [Path(home) / "bin" for key in ("CUDA_HOME", "CUDA_PATH") if (home := os.environ.get(key))]
    found = [path for pattern in FOLDERS for path in sorted(root.glob(pattern), key=_newest_last, reverse=True)]
    return next((str(folder / name) for folder in [*homes, *found] if _runs(folder / name)), None)


def _runs(path: Path) -> bool:
    try:
        return path.is_file() and os.access(path, os.X_OK)
    except OSError:  # a name too long
        return False


def _newest_last(path: Path) -> list[tuple[int, str]]:
    """Sort key that compares numbers in a path as numbers: 2025.10 is newer than 2025.9."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", str(path))]


def _ask_version(path: str) -> tuple[str | None, str | None]:
    """Return the version, or the reason why there is none."""
    try:
        answer = subprocess.run(
            [path, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=ANSWER_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, f"--version did not answer within {ANSWER_S:g} s"
    except OSError as error:
        return None, f"cannot be started: {error.strerror}"
    match = re.search(r"\bversion\s+(\d[\w.]*)", answer.stdout, re.IGNORECASE)
    if answer.returncode == 0 and match:
        return match[1], None
    words = (answer.stderr or answer.stdout).strip().splitlines()
    return None, f"--version ended with code {answer.returncode}" + (f": {words[-1][:200]}" if words else "")
