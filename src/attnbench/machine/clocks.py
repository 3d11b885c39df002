"""Lock the clocks during a measurement and reset them on every exit path.

A guardian process (`clock_guard`) does the work.  It locks the clocks, and resets them as soon as this process closes
a pipe, which happens at the end of the block, after an exception, and when this process is killed.  NVML does not
report whether the clocks were locked before, so a reset means the driver's default.
"""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from attnbench.errors import Unavailable, UsageError, refusal
from attnbench.machine import advice, child
from attnbench.machine.device import Device
from attnbench.machine.nvml import Gpu

START_S = 30.0
"""Time limit of the guardian for locking; a driver that is not loaded needs seconds."""


@contextmanager
def locked_clocks(spec: str, device: Device) -> Iterator[None]:
    """Lock the clocks of a GPU while the block runs.

    Args:
        spec: ``SM`` or ``SM,MEM`` in MHz.
        device: a GPU.

    Raises:
        UsageError: the spec is malformed, the GPU does not support these clocks, or the device is a CPU.
        Unavailable: NVML does not answer, the user may not lock clocks (the message has the command
            for an administrator), or the clocks could not be reset.
    """
    sm_mhz, mem_mhz = parse(spec)
    if not device.on_gpu:
        raise UsageError(refusal("clocks", "lock_clocks", spec, f"cannot be set on {device}", "a CUDA device"))
    gpu = Gpu.open(device)
    _check_supported(gpu, spec, sm_mhz, mem_mhz)
    guard = _start(gpu, sm_mhz, mem_mhz)
    try:
        _await_lock(guard, gpu, sm_mhz, mem_mhz)
        yield
    except BaseException as error:
        trouble = _release(guard, gpu, memory=mem_mhz is not None)
        if trouble:
            error.add_note(trouble)
        raise
    trouble = _release(guard, gpu, memory=mem_mhz is not None)
    if trouble:
        raise Unavailable(trouble)


def parse(spec: str) -> tuple[int, int | None]:
    """Read ``SM[,MEM]``.

    Raises:
        UsageError: the spec is not one or two whole numbers above 0.
    """
    match = re.fullmatch(r"([1-9]\d*)(?:,([1-9]\d*))?", spec)
    if not match:
        raise UsageError(
            refusal(
                "clocks",
                "lock_clocks",
                spec,
                "is not SM[,MEM]",
                "one or two whole numbers of MHz, such as 1500 or 1500,2619",
            )
        )
    return int(match[1]), int(match[2]) if match[2] else None


def nearest(value: int, accepted: Sequence[int]) -> list[int]:
    """Return the accepted values just below and just above, ascending."""
    below = max((mhz for mhz in accepted if mhz <= value), default=None)
    above = min((mhz for mhz in accepted if mhz >= value), default=None)
    return sorted({mhz for mhz in (below, above) if mhz is not None})


def _check_supported(gpu: Gpu, spec: str, sm_mhz: int, mem_mhz: int | None) -> None:
    """Refuse clocks that the GPU does not support: the driver would silently use others."""
    supported = gpu.supported_clocks()
    if supported is None:
        return
    if mem_mhz is not None and mem_mhz not in supported:
        raise _unsupported(spec, "memory", mem_mhz, list(supported))
    accepted = supported[mem_mhz] if mem_mhz is not None else sorted({sm for row in supported.values() for sm in row})
    if sm_mhz not in accepted:
        raise _unsupported(spec, "SM", sm_mhz, accepted)


def _unsupported(spec: str, clock: str, value: int, accepted: Sequence[int]) -> UsageError:
    near = " and ".join(str(mhz) for mhz in nearest(value, accepted))
    return UsageError(
        refusal(
            "clocks",
            "lock_clocks",
            spec,
            f"has no {clock} clock of {value} MHz on this card",
            f"{min(accepted)} to {max(accepted)}, nearest {near}",
        )
    )


def _start(gpu: Gpu, sm_mhz: int, mem_mhz: int | None) -> subprocess.Popen[str]:
    uuid = gpu.uuid()
    if uuid is None:
        raise Unavailable("clocks: gpu_uuid=None is not told by the driver; a card that NVML can name")
    clocks = [str(mhz) for mhz in (sm_mhz, mem_mhz) if mhz is not None]
    return subprocess.Popen(
        child.command("attnbench.machine.clock_guard", str(os.getpid()), uuid, *clocks),
        env=child.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _await_lock(guard: subprocess.Popen[str], gpu: Gpu, sm_mhz: int, mem_mhz: int | None) -> None:
    assert guard.stdout is not None
    ready = select.select([guard.stdout], [], [], START_S)[0]
    line = guard.stdout.readline() if ready else ""
    answer = json.loads(line) if line else {"error": "unavailable", "reason": "the guardian process did not answer"}
    asked = str(sm_mhz) if mem_mhz is None else f"{sm_mhz},{mem_mhz}"
    if answer.get("error") == "permission":
        lock = " && ".join(advice.lock_commands(gpu, sm_mhz, mem_mhz))
        back = " && ".join(advice.reset_commands(gpu, memory=mem_mhz is not None))
        raise Unavailable(
            refusal(
                "clocks",
                "lock_clocks",
                asked,
                f"is not permitted ({answer['reason']})",
                f"an administrator locks them with: {lock}",
                f"afterwards: {back}",
            )
        )
    if "error" in answer:
        raise Unavailable(refusal("clocks", "lock_clocks", asked, "cannot be set", answer["reason"]))


def _release(guard: subprocess.Popen[str], gpu: Gpu, *, memory: bool) -> str | None:
    """Close the pipe; return a message if the clocks were not reset."""
    assert guard.stdin is not None
    assert guard.stdout is not None
    try:
        guard.stdin.write("release\n")  # a forked child may hold the pipe open, so closing it is not enough
        guard.stdin.close()
    except OSError:  # the guardian is gone; its exit code has the reason
        pass
    try:
        code = guard.wait(START_S)
    except subprocess.TimeoutExpired:
        code = None
    guard.stdout.close()
    if code in (0, 1):
        return None
    back = " && ".join(advice.reset_commands(gpu, memory=memory))
    return f"clocks: lock_clocks=on may still be in force; the guardian process ended with {code}; {back}"
