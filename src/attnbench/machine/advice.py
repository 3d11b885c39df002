"""Commands for the user to run, written for this GPU.  Nothing here runs any of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from attnbench.machine.fingerprint import usable_cores
from attnbench.machine.memory import available_memory
from attnbench.machine.nvml import Gpu

GIB = 2**30
BUILD_JOB_BYTES = 5 * GIB
"""Memory of one nvcc job of flash-attn, the largest among the libraries; with less it swaps or is killed."""

OLDEST = {"torch": (2, 11), "triton": (3, 6)}
"""Oldest tested versions; older ones may work."""
WHEELS = "https://download.pytorch.org/whl/cu{}"


@dataclass(frozen=True, slots=True)
class Advice:
    """A command and its purpose."""

    command: str
    why: str


def tuning(gpu: Gpu) -> list[Advice]:
    """Return tuning commands for this GPU: persistence mode, clocks at its maximum, and the command to reset them."""
    advice = []
    if gpu.persistence() is not True:
        advice.append(Advice(smi(gpu, "-pm 1"), "keep the driver loaded"))
    highest = gpu.sm_max_mhz()
    if highest is not None:
        advice.append(Advice(smi(gpu, f"-lgc {highest},{highest}"), "highest SM clock, within the power limit"))
        advice.append(Advice(smi(gpu, "-rgc"), "reset the SM clock"))
    return advice


def updates(versions: Mapping[str, str | None], cuda: str | None, driver_cuda: tuple[int, int] | None) -> list[Advice]:
    """Return updates of torch, triton and the driver, as far as they can be determined without a network.

    Args:
        versions: versions of torch and triton; None if not installed.
        cuda: CUDA version of torch's build.
        driver_cuda: the newest CUDA version that the driver supports.
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
    """Return the commands that lock the clocks by hand."""
    commands = [smi(gpu, f"-lgc {sm_mhz},{sm_mhz}")]
    return commands if mem_mhz is None else [*commands, smi(gpu, f"-lmc {mem_mhz},{mem_mhz}")]


def reset_commands(gpu: Gpu, *, memory: bool) -> list[str]:
    """Return the commands that reset the clocks by hand."""
    return [smi(gpu, "-rgc"), smi(gpu, "-rmc")] if memory else [smi(gpu, "-rgc")]


def smi(gpu: Gpu, arguments: str) -> str:
    """Return a command line of nvidia-smi; it names the GPU if the machine has several."""
    index = gpu.index()
    which = f"-i {index} " if gpu.count > 1 and index is not None else ""
    return f"sudo nvidia-smi {which}{arguments}"


def max_jobs(available_bytes: int | None = None) -> int:
    """Return how many compile jobs of an attention library fit in memory; at least 1, at most one per core.

    Args:
        available_bytes: memory for the jobs; None asks the system.
    """
    memory = available_memory() if available_bytes is None else available_bytes
    return 1 if memory is None else max(1, min(usable_cores() or 1, memory // BUILD_JOB_BYTES))


def install_line(line: str) -> str:
    """Insert this machine's number into ``MAX_JOBS={max_jobs} pip install …``; other lines are unchanged."""
    return line.replace("{max_jobs}", str(max_jobs())) if "{max_jobs}" in line else line
