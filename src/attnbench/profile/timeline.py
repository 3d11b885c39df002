"""Turn events on time lines into rows: launches by range, projected ranges, busy time, sums."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from attnbench.profile.capture import ApiRow, CopyRow, KernelRow, RangeRow, split_range
from attnbench.profile.categories import Categories, by_range
from attnbench.profile.names import short_name

NS_MS = 1e6
"""Nanoseconds per millisecond."""


@dataclass(slots=True, frozen=True)
class Event:
    """One activity of the GPU, in ns of the tool's clock."""

    kind: str
    "kernel or copy"
    name: str
    start: float
    end: float
    ranges: tuple[int, ...] = ()
    "indices of the range instances open at its launch, innermost last"
    bytes: int | None = None
    grid: tuple[int, ...] | None = None
    block: tuple[int, ...] | None = None


@dataclass(slots=True, frozen=True)
class Instance:
    """One instance of a range, in ns of the tool's clock."""

    name: str
    start: float
    end: float
    thread: Hashable


@dataclass(slots=True)
class Timeline:
    """All events of a capture."""

    events: list[Event] = field(default_factory=list)
    instances: Sequence[Instance] = ()
    calls: Mapping[str, Sequence[float]] = field(default_factory=dict)
    "durations of every API call in ns, by function"

    def kernels(self, rules: Categories) -> tuple[KernelRow, ...]:
        """Return rows by range and kernel, longest first."""
        groups: dict[tuple[tuple[str, ...], str], list[Event]] = defaultdict(list)
        for event in self.events:
            if event.kind == "kernel":
                groups[tuple(self.instances[index].name for index in event.ranges), event.name].append(event)
        rows = [_kernel_row(ranges, name, events, rules) for (ranges, name), events in groups.items()]
        return by_range(sorted(rows, key=lambda row: -(row.total_ms or 0)))

    def ranges(self) -> tuple[RangeRow, ...]:
        """Return rows by range, in order of first appearance, with their projection on the GPU."""
        launched: dict[int, list[Event]] = defaultdict(list)
        for event in self.events:
            for index in event.ranges:
                launched[index].append(event)
        by_name: dict[str, list[int]] = defaultdict(list)
        for index, instance in enumerate(self.instances):
            by_name[instance.name].append(index)
        return tuple(self._range_row(name, indices, launched) for name, indices in by_name.items())

    def _range_row(self, name: str, indices: Sequence[int], launched: Mapping[int, list[Event]]) -> RangeRow:
        spans = [span(launched[index]) for index in indices if index in launched]
        windows = [window for window, _ in spans if window is not None]
        busy = [busy for _, busy in spans if busy is not None]
        host = sum(self.instances[index].end - self.instances[index].start for index in indices)
        return RangeRow(
            name=name,
            calls=len(indices),
            host_ms=host / NS_MS,
            gpu_ms=sum(windows) if windows else None,
            busy_ms=sum(busy) if busy else None,
        )

    def copies(self) -> tuple[CopyRow, ...]:
        """Return rows by kind of copy."""
        groups: dict[str, list[Event]] = defaultdict(list)
        for event in self.events:
            if event.kind == "copy":
                groups[event.name].append(event)
        return tuple(_copy_row(name, events) for name, events in groups.items())

    def api(self) -> tuple[ApiRow, ...]:
        """Return rows by function, longest first."""
        rows = []
        for name, times in self.calls.items():
            ms = [time / NS_MS for time in times]
            rows.append(
                ApiRow(
                    name=name,
                    calls=len(ms),
                    total_ms=sum(ms),
                    mean_ms=statistics.fmean(ms),
                    median_ms=statistics.median(ms),
                    min_ms=min(ms),
                    max_ms=max(ms),
                )
            )
        return tuple(sorted(rows, key=lambda row: -(row.total_ms or 0)))


def span(events: Iterable[Event]) -> tuple[float | None, float | None]:
    """Return window and busy time in ms; (None, None) without events."""
    ordered = sorted(events, key=lambda event: event.start)
    if not ordered:
        return None, None
    busy, reached = 0.0, ordered[0].start
    for event in ordered:
        busy += max(0.0, event.end - max(event.start, reached))
        reached = max(reached, event.end)
    return (reached - ordered[0].start) / NS_MS, busy / NS_MS


def enclosing(
    instances: Sequence[Instance], points: Iterable[tuple[Hashable, float, Hashable]]
) -> dict[Hashable, tuple[int, ...]]:
    """Return the ranges that were open at each point.

    A point outside every range of its own thread belongs to the ranges open in any thread at that time: autograd's
    thread launches the backward while the thread that called it waits.

    Args:
        instances: instances of all threads.
        points: (thread, time, key).

    Returns:
        Indices of instances by key, innermost last; keys outside every range are omitted.
    """
    points = list(points)
    of_thread: dict[Hashable, list[int]] = defaultdict(list)
    for index, instance in enumerate(instances):
        of_thread[instance.thread].append(index)
    by_thread: dict[Hashable, list[tuple[float, Hashable]]] = defaultdict(list)
    for thread, time, key in points:
        by_thread[thread].append((time, key))
    found: dict[Hashable, tuple[int, ...]] = {}
    for thread, times in by_thread.items():
        _sweep(instances, of_thread[thread], times, found)
    strays = [(time, key) for _, time, key in points if key not in found]
    if strays:
        _sweep(instances, range(len(instances)), strays, found)
    return found


def _sweep(
    instances: Sequence[Instance],
    indices: Iterable[int],
    points: list[tuple[float, Hashable]],
    found: dict[Hashable, tuple[int, ...]],
) -> None:
    waiting = sorted(indices, key=lambda index: (instances[index].start, -instances[index].end), reverse=True)
    stack: list[int] = []
    for time, key in sorted(points, key=lambda point: point[0]):
        while waiting and instances[waiting[-1]].start <= time:
            stack.append(waiting.pop())
        stack = [index for index in stack if instances[index].end >= time]
        if stack:
            found[key] = tuple(stack)


def _kernel_row(ranges: tuple[str, ...], name: str, events: Sequence[Event], rules: Categories) -> KernelRow:
    # A library's own range inside ours does not hide the backend.
    owner = next((owner for owner in map(split_range, reversed(ranges)) if owner[0]), (None, None))
    ms = [(event.end - event.start) / NS_MS for event in events]
    return KernelRow(
        name=name,
        short=short_name(name),
        category=rules.of(name),
        backend=owner[0],
        case=owner[1],
        range=ranges[-1] if ranges else None,
        within=ranges[:-1],
        calls=len(ms),
        total_ms=sum(ms),
        mean_ms=statistics.fmean(ms),
        median_ms=statistics.median(ms),
        min_ms=min(ms),
        max_ms=max(ms),
        grid=same([event.grid for event in events]),
        block=same([event.block for event in events]),
    )


def _copy_row(name: str, events: Sequence[Event]) -> CopyRow:
    ms = [(event.end - event.start) / NS_MS for event in events]
    sizes = [event.bytes for event in events if event.bytes is not None]
    return CopyRow(
        operation=name,
        calls=len(ms),
        total_ms=sum(ms),
        mean_ms=statistics.fmean(ms),
        min_ms=min(ms),
        max_ms=max(ms),
        total_mb=sum(sizes) / 1e6 if sizes else None,
    )


def same(values: Sequence[tuple[int, ...] | None]) -> tuple[int, ...] | None:
    """Return the value that all have; None if they differ."""
    return values[0] if values and all(value == values[0] for value in values) else None
