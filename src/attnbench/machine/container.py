"""Check from inside a container which measurements it permits, and name the flag for each restriction."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from attnbench.machine.nvml import Gpu
from attnbench.machine.tools import counters_for_all

ROOT = Path("/")
GIB = 2**30
LEAST_SHM = 1 * GIB
"""Minimum shared memory: Docker's default of 64 MiB is used up by one NCCL ring."""
SYS_ADMIN, SYS_NICE = 21, 23
"""Bits of a process's capabilities (capability.h)."""
LEAST_DRIVER = {11: 450, 12: 525, 13: 580}
"""Oldest driver for each major version of CUDA, by NVIDIA's table of minor version compatibility."""
INITS = ("tini", "docker-init", "dumb-init", "catatonit", "systemd", "init", "s6-svscan", "podman-init", "conmon")


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    what: str
    found: str
    todo: str | None = None
    "what to change; None if nothing"


def in_container(root: Path = ROOT) -> bool:
    """Return whether this process runs in a container, as far as can be determined."""
    if (root / ".dockerenv").exists() or (root / "run/.containerenv").exists():
        return True
    return re.search(r"docker|containerd|kubepods|libpod", _read(root / "proc/1/cgroup")) is not None


def findings(gpu: Gpu | None, cuda: str | None, visible: int, root: Path = ROOT) -> list[Finding]:
    """Return the results of all checks.

    Args:
        gpu: a GPU known to the driver; None if there is none, or no driver.
        cuda: CUDA version of torch's build, such as 13.0; None for a CPU build.
        visible: number of GPUs that torch sees.
        root: root of the file system.
    """
    found = [_shared_memory(root), _locked_memory(), *_capabilities(root), _first_process(root)]
    return [*found, *_of_gpus(gpu, cuda, visible)]


def _shared_memory(root: Path) -> Finding:
    try:
        state = os.statvfs(root / "dev/shm")
    except OSError as error:
        return Finding("/dev/shm", f"is not there ({error.strerror})", "--shm-size 8G")
    size = state.f_frsize * state.f_blocks
    return Finding("/dev/shm", f"{size / GIB:.3g} GiB", "--shm-size 8G" if size < LEAST_SHM else None)


def _locked_memory() -> Finding:
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if limit == resource.RLIM_INFINITY:
        return Finding("memlock", "unlimited")
    size = f"{limit / GIB:.3g} GiB" if limit >= GIB else f"{limit / 2**20:.3g} MiB"
    return Finding("memlock", size, "--ulimit memlock=-1 for keys and values in pinned host memory")


def _capabilities(root: Path) -> Iterator[Finding]:
    match = re.search(r"^CapEff:\s*([0-9a-fA-F]+)", _read(root / "proc/self/status"), re.MULTILINE)
    if match is None:
        return
    held = int(match[1], 16)
    nice, admin = (bool(held >> bit & 1) for bit in (SYS_NICE, SYS_ADMIN))
    yield Finding(
        "SYS_NICE", "held" if nice else "not held", None if nice else "--cap-add SYS_NICE to bind memory to a node"
    )
    allowed = counters_for_all(root / "proc/driver/nvidia/params")
    if allowed is not None or admin:
        yield Finding(
            "counters",
            "may be read" if allowed or admin else "may not be read",
            None if allowed or admin else "--cap-add SYS_ADMIN for ncu, or the driver's option for all users",
        )


def _first_process(root: Path) -> Finding:
    name = _read(root / "proc/1/comm").strip() or "unknown"
    todo = None if name in INITS else "--init: nothing reaps the orphaned processes of a worker"
    return Finding("PID 1", name, todo)


def _of_gpus(gpu: Gpu | None, cuda: str | None, visible: int) -> Iterator[Finding]:
    if gpu is None:
        if cuda is not None:  # a build of torch for CPUs is meant to have none
            yield Finding(
                "GPUs", "none is visible", "was --gpus all given? The host needs NVIDIA's container toolkit for it"
            )
        return
    todo = None if visible == gpu.count else "--gpus all, unless only these are to be used"
    yield Finding("GPUs", f"torch sees {visible} of {gpu.count}", todo)
    driver, major = gpu.driver(), int((cuda or "0").split(".")[0])
    if driver is None or major not in LEAST_DRIVER:
        return
    old = int(driver.split(".")[0]) < LEAST_DRIVER[major]
    upgrade = f"a driver {LEAST_DRIVER[major]} or newer on the host, or a build of torch for an older CUDA"
    yield Finding("driver", f"{driver}, torch is built for CUDA {cuda}", upgrade if old else None)


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
