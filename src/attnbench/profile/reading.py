"""Interpret the figures of a capture by the thresholds of seed 004, one sentence per backend.

There, more than 90 % of the SMs' or 80 % of the memory's throughput is good, and a GPU busy for more than 90 % of the
time is good, for less than 70 % poor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attnbench.profile.capture import CPU, Capture, KernelRow

SM_GOOD, MEMORY_GOOD = 90.0, 80.0
BUSY_GOOD, BUSY_POOR = 90.0, 70.0


def of_counters(captures: Sequence[Capture]) -> list[str]:
    """Return for each backend's longest kernel whether it uses the SMs or the memory well."""
    return [sentence for name, row in _longest(captures) if (sentence := _use(name, row))]


def of_times(captures: Sequence[Capture]) -> list[str]:
    """Return for each capture with a window on a GPU how much of it the GPU was busy."""
    found = []
    for capture in captures:
        if capture.device == CPU or not capture.window_ms or capture.busy_ms is None:
            continue
        busy = 100.0 * capture.busy_ms / capture.window_ms
        if busy >= BUSY_GOOD:
            found.append(
                f"{capture.name}: the GPU is busy for {busy:.0f} % of the window: good (over {BUSY_GOOD:.0f} %)"
            )
        elif busy < BUSY_POOR:
            found.append(
                f"{capture.name}: the GPU is busy for {busy:.0f} % of the window: poor (under {BUSY_POOR:.0f} %); it waits "
                "for the host: larger cases, or a CUDA graph"
            )
    return found


def _longest(captures: Sequence[Capture]) -> Iterator[tuple[str, KernelRow]]:
    longest: dict[str, KernelRow] = {}
    for capture in captures:
        for row in capture.kernels:
            name = row.backend or capture.name
            if name not in longest or (row.total_ms or 0.0) > (longest[name].total_ms or 0.0):
                longest[name] = row
    yield from longest.items()


def _use(name: str, row: KernelRow) -> str | None:
    sm, memory = row.counters.get("sm_percent"), row.counters.get("dram_percent")
    if sm is None or memory is None:
        return None
    who = f"{name}: {row.short} uses"
    if sm >= SM_GOOD:
        return f"{who} {sm:.0f} % of the SMs' throughput: good (over {SM_GOOD:.0f} %)"
    if memory >= MEMORY_GOOD:
        return f"{who} {memory:.0f} % of the memory's bandwidth: good (over {MEMORY_GOOD:.0f} %)"
    return (
        f"{who} {sm:.0f} % of the SMs' throughput and {memory:.0f} % of the memory's bandwidth: neither is at its limit "
        f"(over {SM_GOOD:.0f} %, {MEMORY_GOOD:.0f} %), so waiting is; what for stands in the last column"
    )
