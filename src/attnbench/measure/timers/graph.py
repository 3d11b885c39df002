"""CUDA graph replay: a call without host launch cost, with the L2 cold or warm as declared.

A sample is the difference between replaying a graph of n calls, each behind a flush of its own, and a graph of the n
flushes alone, divided by n.  (A graph of bare calls, as in `do_bench_cudagraph`, always has a warm cache.)  With a
warm cache there is no flush and nothing to subtract.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from attnbench.errors import Unavailable
from attnbench.machine.device import Device
from attnbench.measure.stage import Stage
from attnbench.measure.subject import Subject
from attnbench.measure.timer import Reading, Timer

CALLS = 10
"""Calls in a graph: enough to make the 5-7 µs of a replay's start negligible."""


class Graph(Timer):
    """Replays of n calls behind flushes, minus the flushes."""

    name = "graph"
    title = "CUDA graph replay, flushes subtracted"
    devices = ("cuda",)
    inspects = False
    tick_ms = 5e-4 / CALLS

    def probe(self, device: Device) -> None:
        """Require a CUDA device."""
        super().probe(device)
        import torch

        if not torch.cuda.is_available():
            raise Unavailable("graph: device=cuda is not there; a CUDA GPU and a CUDA build of torch")

    def accepts(self, subject: Subject) -> str | None:
        """Accept subjects that can be captured and keep no state that must be reset before each call."""
        if not subject.capturable:
            return "the launch says it cannot be captured in a CUDA graph"
        return "the launch resets state before each call, which a graph cannot" if subject.reset else None

    def measure(
        self, stage: Stage, batch: Sequence[tuple[int, Subject]], lead_s: float, announce: Callable[[int, str], None]
    ) -> list[Reading]:
        """Replay each subject's graph between events, all queued behind a backlog."""
        import torch

        for index, subject in batch:
            if id(subject) not in stage.kept:
                announce(index, "capture")
                stage.kept[id(subject)] = _capture(stage, subject)
        empty = stage.kept.setdefault("graph of flushes", None) or _capture(stage, None)
        stage.kept["graph of flushes"] = empty
        events = [tuple(torch.cuda.Event(enable_timing=True) for _ in range(3)) for _ in batch]
        begun = time.perf_counter()
        stage.begin(lead_s)
        for (index, subject), (start, between, end) in zip(batch, events, strict=True):
            announce(index, "sample")
            start.record()
            if empty is not _NOTHING:
                empty.replay()
            if stage.l2 == "warm":
                stage.ready(subject)  # so that the first call of the graph finds its own data in the cache
            between.record()
            stage.mark()
            stage.kept[id(subject)].replay()
            stage.mark()
            end.record()
        stage.end()
        flushes = [start.elapsed_time(between) for start, between, _ in events]
        cost = statistics.median(flushes) if empty is not _NOTHING else 0.0
        return [
            Reading(
                (between.elapsed_time(end) - cost) / CALLS,
                at_s=begun + events[0][0].elapsed_time(between) / 1e3,
                sm_mhz=clock,
            )
            for (_, between, end), clock in zip(events, stage.sm_mhz(len(batch)), strict=True)
        ]


_NOTHING: Any = object()


def _capture(stage: Stage, subject: Subject | None) -> Any:
    """Capture CALLS × (flush, call); without a subject, the flushes alone."""
    import torch

    if subject is None and stage.l2 == "warm":
        return _NOTHING
    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # set-up work of a first call must not be captured
        if subject:
            subject.call()
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            stage.flush()
            if subject:
                subject.call()
    return graph
