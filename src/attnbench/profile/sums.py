"""Sums of a capture that several tables want."""

from __future__ import annotations

from attnbench.profile import categories as kinds
from attnbench.profile.capture import Capture


def category_ms(capture: Capture, name: str) -> float | None:
    """Time of a category, idle and copies by engines among them; None where nothing of it is there."""
    if name == kinds.IDLE:
        return capture.idle_ms
    times = [row.total_ms for row in capture.kernels if row.category == name]
    if name == kinds.MEMORY_COPY:
        times += [row.total_ms for row in capture.copies]
    kept = [time for time in times if time is not None]
    return sum(kept) if kept else None


def percent(part: float | None, whole: float | None) -> float | None:
    """A part in per cent; None where one of the two is not known."""
    return None if part is None or not whole else 100.0 * part / whole
