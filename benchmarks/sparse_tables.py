"""Rows of the table that holds block-sparse kernels against each other on one map: runs of the suite `sparse`."""

from __future__ import annotations

from attnbench.presentation import sparse
from attnbench.record import Record, Run


def peer_rows(run: Run) -> list[list[str]]:
    """A row a backend, the fastest first: times, both rates, density, E, and the phases before the kernel."""
    timed = sorted((one for one in run.records if one.time and one.time.median_ms), key=lambda one: one.time.median_ms)
    return [_row(record) for record in timed]


def _row(record: Record) -> list[str]:
    rate, efficiency = record.rate, sparse.efficiency(record)
    phases = [record.phases.get(name) for name in ("predict", "convert")]
    return [
        f"`{record.backend}`",
        f"{record.time.median_ms:.3f}",
        f"{rate.tflops:.0f}",
        f"{rate.effective_tflops:.0f}",
        f"{sparse.density(record):.2f}",
        "" if efficiency is None else f"{efficiency:.2f}",
        *("" if phase is None else f"{1e3 * phase.median_ms:.0f}" for phase in phases),
    ]
