"""Commands for the user to run, worded for this card.  Nothing here runs any of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from attnbench.machine.fingerprint import usable_cores
from attnbench.machine.nvml import Gpu

GIB = 2**30
BUILD_JOB_BYTES = 5 * GIB
"""Memory of one nvcc job of flash-attn, the hungriest of the libraries; with less the machine swaps or kills it."""

OLDEST = {"torch": (2, 11), "triton": (3, 6)}
"""Versions that are tested; older ones may work."""
WHEELS = "https://download.pytorch.org/whl/cu{}"

CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True, slots=True)
class Advice:
    """A command and what it is for."""

    command: str
    why: str


def tuning(gpu: Gpu) -> list[Advice]:
    """This card's own tuning commands: persistence mode, clocks at its maximum, and the way back."""
    advice = []
    if gpu.persistence() is not True:
        advice.append(Advice(smi(gpu, "-pm 1"), "keep the driver loaded"))
    highest = gpu.sm_max_mhz()
    if highest is not None:
        advice.append(Advice(smi(gpu, f"-lgc {highest},{highest}"), "the highest SM clock, as far as power allows"))
        advice.append(Advice(smi(gpu, "-rgc"), "give the SM clock back"))
    return advice


def updates(versions: Mapping[str, str | None], cuda: str | None, driver_cuda: tuple[int, int] | None) -> list[Advice]:
    """What to bring up to date, as far as can be found out without a network.

    Args:
        versions: of torch and triton; None where one is not there.
        cuda: that torch was built for.
        driver_cuda: the newest that the driver knows.
    """
    advice = []
    for name, oldest in OLDEST.items():
        known = _numbers(versions.get(name))
        if known is not None and known < oldest:
            asked = ".".join(map(str, oldest))
            advice.append(
                Advice(f"pip install -U {name}", f"{versions[name]} is older than {asked}, the oldest tested")
            )
    built = _numbers(cuda)
    if built and driver_cuda and built[0] != driver_cuda[0]:
        newest = ".".join(map(str, driver_cuda))
        if built > driver_cuda:
            why = f"torch is built for it, and this driver knows CUDA {newest}"
            advice.append(Advice(f"a driver for CUDA {cuda}", why))
        else:
            why = f"torch is built for CUDA {cuda}, the driver knows {newest}, and newer builds have newer kernels"
            wheels = WHEELS.format("".join(map(str, driver_cuda)))
            advice.append(Advice(f"pip install -U torch --index-url {wheels}", why))
    return advice


def _numbers(version: str | None) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", version or "")
    return None if found is None else (int(found[1]), int(found[2]))


def lock_commands(gpu: Gpu, sm_mhz: int, mem_mhz: int | None) -> list[str]:
    """Commands that lock the clocks by hand."""
    commands = [smi(gpu, f"-lgc {sm_mhz},{sm_mhz}")]
    return commands if mem_mhz is None else [*commands, smi(gpu, f"-lmc {mem_mhz},{mem_mhz}")]


def reset_commands(gpu: Gpu, *, memory: bool) -> list[str]:
    """Commands that give the clocks back by hand."""
    return [smi(gpu, "-rgc"), smi(gpu, "-rmc")] if memory else [smi(gpu, "-rgc")]


def smi(gpu: Gpu, arguments: str) -> str:
    """A command line of nvidia-smi; it names the card where the machine has several."""
    index = gpu.index()
    which = f"-i {index} " if gpu.count > 1 and index is not None else ""
    return f"sudo nvidia-smi {which}{arguments}"


def max_jobs(available_bytes: int | None = None) -> int:
    """How many compile jobs of an attention library fit in memory; at least 1, at most one a core.

    Args:
        available_bytes: memory to share out; None asks the system.
    """
    memory = available_memory() if available_bytes is None else available_bytes
    return 1 if memory is None else max(1, min(usable_cores() or 1, memory // BUILD_JOB_BYTES))


def install_line(line: str) -> str:
    """Fill this machine's number into ``MAX_JOBS={max_jobs} pip install …``; other lines stay as they are."""
    return line.replace("{max_jobs}", str(max_jobs())) if "{max_jobs}" in line else line


def available_memory() -> int | None:
    """Bytes that can be had now, by the machine and by the container's limit, whichever is less."""
    limits = [limit for limit in (_memory_available(), _cgroup_room()) if limit is not None]
    return min(limits, default=None)


def _memory_available() -> int | None:
    try:
        lines = MEMINFO.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _cgroup_room() -> int | None:
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            return max(0, int((CGROUP / limit).read_text()) - int((CGROUP / used).read_text()))
        except (OSError, ValueError):  # no such file, or "max": no limit
            continue
    return None
