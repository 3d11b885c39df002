"""Rows of the table of ranking steps: a run of `hstu-serving` with every timer."""

from __future__ import annotations

from attnbench.presentation.block import backend_name
from attnbench.presentation.serving import end_to_end, of_the_device
from attnbench.record import Record, Run

HEAD = ("users × candidates", "cached tokens", "row", "p50", "p99", "on the GPU", "requests/s", "over the baseline")


def serving_rows(run: Run) -> list[list[str]]:
    """A line for each case and row: end to end, the GPU's part, throughput, and speed over the run's baseline."""
    return [_row(record) for record in run.records if record.time]


def _row(record: Record) -> list[str]:
    case, whole, device = record.case, end_to_end(record), of_the_device(record)
    where = case["cache"] + (f", {case['on_host_hit']}" if case["cache"] == "host-hit" else "")
    speedup = record.speedup
    rate = 1e3 * record.counters["requests"] / whole.median_ms if whole and whole.median_ms else None
    return [
        f"{case['batch']} × {case['num_candidates']}",
        f"{case['cached']}, {where}",
        f"`{backend_name(record)}`",
        *(_ms(value) for value in (whole and whole.median_ms, whole and whole.p99_ms, device and device.median_ms)),
        "" if rate is None else f"{rate:.0f}",
        f"{speedup.ratio:.2f}×" if speedup and speedup.ratio else "",
    ]


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.3g} ms"
