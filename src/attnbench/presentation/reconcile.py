"""End to end and attention by itself, reconciled: what a faster attention should buy, and what it bought.

    predicted step = step₀ - attention₀ + attention

with the step and the attention of the row that is started from (₀) and the attention of each other row of its case.
Where measured and predicted differ, something else in the step changed with the attention: launches, copies, clocks.

A row whose attention takes longer than its whole step cannot be explained: its phases have few samples, and launched
one by one they wait for the host.  It is left out, and a note says so.

Known from the records alone: the phase `attention` is what attention takes, `copies` what a backend needs beside it.
Of both, the time in which kernels run, where that is known: a phase alone may wait for the host between its launches,
where a whole step has work queued.  Rows that serve requests time both of one layer, and count the `layers`; others
time them of the whole step.  Compared are rows that compute the same: those that find other tokens cached stand in a
table of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnbench.presentation import figures
from attnbench.presentation.block import Block, Column, Line, backend_name
from attnbench.presentation.serving import REQUESTS
from attnbench.record import Record

ATTENTION, COPIES = "attention", "copies"
COMPUTED = "missed_tokens"
NOTE = (
    "predicted: the first row's step with this row's attention in place of its own; difference: measured against "
    "predicted"
)


@dataclass(frozen=True, slots=True)
class Reconciled:
    """One row: its step as measured, and as the first row predicts it."""

    record: Record
    step_ms: float
    attention_ms: float
    predicted_ms: float | None
    "None of the row that is started from"

    @property
    def difference(self) -> float | None:
        """Measured against predicted: 0.02 is 2 % more than predicted."""
        return self.step_ms / self.predicted_ms - 1 if self.predicted_ms and self.predicted_ms > 0 else None


def attention_ms(record: Record) -> float | None:
    """What attention takes in a step, in ms; None where it was not timed or its layers are not known."""
    times = [record.phases[name] for name in (ATTENTION, COPIES) if name in record.phases]
    known = [time.median_ms if time.busy_ms is None else time.busy_ms for time in times if time.median_ms is not None]
    calls = record.counters.get("layers") if REQUESTS in record.counters else 1
    return sum(known) * calls if ATTENTION in record.phases and len(known) == len(times) and calls else None


def reconcile(records: Sequence[Record], baseline: str | None) -> list[list[Reconciled]]:
    """Tables of rows that compute the same, the row that is started from first; those of one row are left out.

    Args:
        records: of one case.
        baseline: the row to start from, where it is among them; else the first one.
    """
    known: dict[float | None, list[tuple[Record, float, float]]] = {}
    for record in records:
        step, attention = record.time.median_ms if record.time else None, attention_ms(record)
        if step and attention is not None and attention < step:
            known.setdefault(record.counters.get(COMPUTED), []).append((record, step, attention))
    tables = []
    for rows in known.values():
        rows.sort(key=lambda row: baseline not in (backend_name(row[0]), row[0].backend))
        (first, step, attention), *others = rows
        tables.append(
            [Reconciled(first, step, attention, None)]
            + [Reconciled(record, measured, own, step - attention + own) for record, measured, own in others]
        )
    return [table for table in tables if len(table) > 1]


def reconciled(title: str, records: Sequence[Record], baseline: str | None) -> list[Block]:
    """The tables of one case; nothing where attention is timed of fewer than two rows."""
    late = [
        backend_name(record)
        for record in records
        if record.time
        and record.time.median_ms
        and (attention := attention_ms(record)) is not None
        and attention >= record.time.median_ms
    ]
    notes = [NOTE] + [
        f"left out: {', '.join(late)}: attention took longer than the whole step; it has few samples, "
        "and another program or the host's launches may have delayed it"
    ] * bool(late)
    return [_block(title, rows, notes) for rows in reconcile(records, baseline)]


def _block(title: str, rows: Sequence[Reconciled], notes: Sequence[str]) -> Block:
    unit = figures.unit_for(row.step_ms for row in rows)
    columns = [
        Column("backend", f"explained, {unit.name}", 0, number=False),
        Column("attention", "attention", 2),
        Column("share", "attention %", 3),
        Column("rest", "the rest", 4),
        Column("predicted", "predicted", 1),
        Column("measured", "measured", 0),
        Column("difference", "difference %", 1),
    ]
    lines = [Line(row.record, _cells(row, unit)) for row in rows]
    return Block(title, None, columns, lines, notes=tuple(notes))


def _cells(row: Reconciled, unit: figures.Unit) -> dict[str, str]:
    difference = row.difference
    return {
        "backend": backend_name(row.record),
        "attention": _in(unit, row.attention_ms),
        "share": f"{100 * row.attention_ms / row.step_ms:.0f}",
        "rest": _in(unit, row.step_ms - row.attention_ms),
        "predicted": _in(unit, row.predicted_ms),
        "measured": _in(unit, row.step_ms),
        "difference": "" if difference is None else f"{100 * difference:+.1f}",
    }


def _in(unit: figures.Unit, ms: float | None) -> str:
    return figures.plain(None if ms is None else ms * unit.per_ms)
