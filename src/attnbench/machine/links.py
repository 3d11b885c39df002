"""Measure how fast the GPUs of this machine communicate, which limits what context-parallel attention can hide.

One process per GPU, joined by NCCL (by gloo on a CPU, where the figures are those of shared memory).  Each sample
begins after a barrier; its time is the slowest rank's.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
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


def measure_links(who: str, devices: Sequence[Device], sizes_mb: Sequence[float]) -> list[Link]:
    """Measure every operation at every size.

    Args:
        who: subject of error messages.
        devices: one per rank, at least two.
        sizes_mb: sizes in MiB.

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
        answers = [None] * len(ranks)
        while None in answers:
            for number, rank_process in enumerate(ranks):
                found = rank_process.answer(TIMEOUT_S)
                if found is not None and found.value is None:
                    what = f"{devices[number]} (rank {number})"
                    raise Unavailable(refusal(who, "device", what, str(found.end), "every rank has to finish"))
                answers[number] = None if found is None else found.value
            time.sleep(LOOK_S)
    return _links(answers, len(devices))


def _links(answers: Sequence[dict[str, list[float]] | None], count: int) -> list[Link]:
    """Return the links from the samples of all ranks, by operation and size; a sample is the slowest rank's."""
    found = []
    for key in answers[0] or {}:
        operation, _, size = key.partition(" ")
        slowest = [max(times) for times in zip(*((one or {})[key] for one in answers), strict=True)]
        peers = 1 if operation in (COPY, "exchange") else count - 1
        ms = median(slowest)
        found.append(Link(operation, float(size), ms, float(size) * MIB * peers / ms / 1e6))
    return found
