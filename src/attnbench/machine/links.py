"""Measure how fast the GPUs of this machine communicate, which limits what context-parallel attention can hide.

One process per GPU, joined by NCCL (by gloo on a CPU, where the figures are those of shared memory).  Each sample
begins after a barrier; its time is the slowest rank's.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from attnbench.errors import Unavailable, refusal
from attnbench.machine import child
from attnbench.machine.device import Device

COPY = "copy"
OPERATIONS = (COPY, "exchange", "all-to-all", "all-gather")
"""A copy from the first GPU to the second; a simultaneous exchange of two neighbours; collectives of all GPUs."""
SAMPLES, WARMUP = 20, 5
TIMEOUT_S = 300.0
"""Time limit of the whole measurement: a rank that hangs waits forever."""
LOOK_S = 0.02
PROGRESS_S = 8.0
"""Time between two words of progress."""
STEP = "step"
"""File beside the store of the ranks: what the first one measures."""
MODULE = "attnbench.machine.link_rank"
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Link:
    """One operation at one size."""

    operation: str
    size_mb: float
    "MiB that a GPU sends to each receiving GPU"
    median_ms: float
    "of the slowest rank's times"
    gbps: float
    "GB/s sent by a GPU, one direction"


def measure_links(
    who: str,
    devices: Sequence[Device],
    sizes_mb: Sequence[float],
    on_progress: Callable[[str], None] = lambda text: None,
) -> list[Link]:
    """Measure every operation at every size.

    Args:
        who: subject of error messages.
        devices: one per rank, at least two.
        sizes_mb: sizes in MiB.
        on_progress: called every few seconds with what is measured, and for how long the ranks have run.

    Raises:
        Unavailable: a rank could not start, died or hung.
    """
    with ExitStack() as closing:
        place = closing.enter_context(tempfile.TemporaryDirectory(prefix="attnbench-"))
        names = ",".join(map(str, devices))
        ranks = []
        for rank in range(len(devices)):
            words = (str(rank), names, str(Path(place) / "store"), ",".join(map(str, sizes_mb)))
            ranks.append(child.Question(MODULE, *words))
            closing.callback(ranks[-1].end)
        answers: list[child.Answer | None] = [None]
        began = said = time.monotonic()
        while None in answers:
            answers = [rank.answer(TIMEOUT_S) for rank in ranks]
            _check(who, devices, answers)
            time.sleep(LOOK_S)
            if (now := time.monotonic()) - said >= PROGRESS_S:
                said = now
                on_progress(f"{_step(Path(place))}, {now - began:.0f} s")
    return _links([one.value for one in answers if one is not None], len(devices))


def _step(place: Path) -> str:
    try:
        return (place / STEP).read_text() or "the ranks start"
    except FileNotFoundError:
        return "the ranks start"


def _check(who: str, devices: Sequence[Device], answers: Sequence[child.Answer | None]) -> None:
    """Refuse ranks that ended without an answer, or whose time is up.

    Of several that ended the one that was killed is named: the others lost it.  Of those that hang all are: some wait.

    Raises:
        Unavailable: with how it ended.
    """
    failed = {rank: one for rank, one in enumerate(answers) if one is not None and one.value is None}
    if not failed:
        return
    codes = {rank: one.code for rank, one in failed.items() if one.code is not None}
    named = [rank for rank, one in enumerate(answers) if rank in failed or one is None]
    if codes:
        named = [min(codes, key=codes.__getitem__)]  # that of a signal is negative
    end = failed[named[0]].end if codes else next(iter(failed.values())).end
    what = ", ".join(f"{devices[rank]} (rank {rank})" for rank in named)
    raise Unavailable(refusal(who, "device", what, str(end), "every rank has to finish"))


def _links(answers: Sequence[dict[str, list[float]]], count: int) -> list[Link]:
    """Return the links from the samples of all ranks, by operation and size; a sample is the slowest rank's."""
    found = []
    for key in answers[0]:
        operation, _, size = key.partition(" ")
        slowest = [max(times) for times in zip(*(one[key] for one in answers), strict=True)]
        peers = 1 if operation in (COPY, "exchange") else count - 1
        ms = median(slowest)
        found.append(Link(operation, float(size), ms, float(size) * MIB * peers / ms / 1e6))
    return found
