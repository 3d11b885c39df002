"""Parts of a launch's time: by category of its kernels if a capture was attached, else by its phases."""

from __future__ import annotations

from attnbench.presentation.reconcile import ALONE, ATTENTION, COPIES, PREPARATION, attention_ms
from attnbench.record import Record

OF_LAUNCH = "launch_ms_"
"Prefix of the counters that `attnbench profile --into` adds: time by category of a launch's kernels."
REST, GAPS = "the rest", "idle"
IN_CAPTURE = "attention preparation"


def parts_of(record: Record) -> dict[str, float]:
    """Return named parts in ms, attention first and idle last; empty if the attention was not timed."""
    found = {
        name.removeprefix(OF_LAUNCH): ms for name, ms in record.counters.items() if name.startswith(OF_LAUNCH) and ms
    }
    return found or _phases(record)


def _phases(record: Record) -> dict[str, float]:
    whole = record.time
    attention, step = attention_ms(record), whole.median_ms if whole else None
    if whole is None or attention is None or step is None or attention >= step or ALONE not in record.phases:
        return {}
    beside = {
        name: time.median_ms or 0.0
        for name in (PREPARATION, COPIES)
        if (time := record.phases.get(name)) is not None and time.median_ms
    }
    idle = max(0.0, step - whole.busy_ms) if whole.busy_ms is not None else 0.0
    parts = {
        ATTENTION: attention - sum(beside.values()),
        IN_CAPTURE: sum(beside.values()),
        REST: step - attention - idle,
        GAPS: idle,
    }
    return {name: ms for name, ms in parts.items() if ms > 0}
