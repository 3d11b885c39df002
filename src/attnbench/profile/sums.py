"""Sums over a capture that several tables need."""

from __future__ import annotations

from attnbench.profile import categories as kinds
from attnbench.profile.capture import Capture


def category_ms(capture: Capture, name: str) -> float | None:
    """Return the time of a category, including idle and copies by copy engines; None if the capture has none."""
    if name == kinds.IDLE:
        return capture.idle_ms
    times = [row.total_ms for row in capture.kernels if row.category == name]
    if name == kinds.MEMORY_COPY:
        times += [row.total_ms for row in capture.copies]
    kept = [time for time in times if time is not None]
    return sum(kept) if kept else None


def percent(part: float | None, whole: float | None) -> float | None:
    """Return a part in per cent; None if one of the two is unknown."""
    return None if part is None or not whole else 100.0 * part / whole
