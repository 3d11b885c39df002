"""Compares the end-to-end step with the attention alone: the predicted and the measured gain of a faster attention.

    predicted step = step₀ - attention₀ + attention

with the step and the attention of a reference row (₀) and the attention of each other row of its case.  This is
the time of a call by itself, times the calls of a step, if it was timed (phase `attention alone`), else in place.  The
measured step differs from the prediction by

    in place      additional time of the attention inside the model: caches, the clock, launches
    copies        copies that a backend needs in addition (phase `copies`)
    gaps          time of the step without a running kernel
    clock         the difference in ms that disappears when cycles of the SM clock are compared instead
    unexplained   the rest

each relative to the reference row, in cycles at each row's own clock if clocks were read.

A row whose attention was timed by the wall clock and whose step by the device is left out: one of them has the host's
launches in it.  So is one whose attention takes longer than its whole step: its phases have few samples, and launched
one by one they wait for the host.  A note says which.

Both phases use the time in which kernels run, if it is known: a phase alone may wait for the host between
its launches, while a whole step has work queued.  Rows that serve requests time both for one layer, and count the
`layers`; others time them for the whole step.  Only rows that compute the same are compared: rows that find other
numbers of tokens cached have a table of their own.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from attnbench.presentation import figures
from attnbench.presentation.block import Block, Column, Line, backend_name, filled
from attnbench.presentation.ranges import Range, added, limit, limit_cells, range_of
from attnbench.presentation.serving import REQUESTS
from attnbench.record import Record, Time

ATTENTION, COPIES, ALONE, PREPARATION = "attention", "copies", "attention alone", "preparation"
COMPUTED = "missed_tokens"
NOTE = (
    "predicted: the first row's step with this row's attention in place of its own; difference: measured against "
    "predicted; saved: of the first row's attention time, what this row's step is shorter by"
)
RESIDUES = ("in_place", "copies", "gaps", "clock", "unexplained")


@dataclass(frozen=True, slots=True)
class Parts:
    """Known parts of one row, in ms or in millions of cycles."""

    step: float
    attention: float
    "in place, without its copies"
    alone: float | None
    "time of a call by itself, times the calls of a step"
    copies: float
    gaps: float

    @property
    def exchanged(self) -> float:
        """The attention time that a prediction exchanges."""
        return self.attention if self.alone is None else self.alone


@dataclass(frozen=True, slots=True)
class Reconciled:
    """One row: its step as measured, and as predicted from the reference row."""

    record: Record
    ms: Parts
    cycles: Parts | None
    "None if clocks were not read for everything that is compared"
    first: Reconciled | None
    "the reference row; None for that row itself"

    @property
    def step_ms(self) -> float:
        """Step as measured."""
        return self.ms.step

    @property
    def attention_ms(self) -> float:
        """Attention in place, with its copies."""
        return self.ms.attention + self.ms.copies

    @property
    def predicted_ms(self) -> float | None:
        """The step as predicted from the reference row; None for that row."""
        return None if self.first is None else _predicted(self.first.ms, self.ms)

    @property
    def difference(self) -> float | None:
        """Measured relative to predicted: 0.02 means 2 % more than predicted."""
        return _over(self.ms.step, self.predicted_ms)

    @property
    def predicted_cycles(self) -> float | None:
        """The prediction in millions of cycles; None if clocks are unknown."""
        if self.first is None or self.first.cycles is None or self.cycles is None:
            return None
        return _predicted(self.first.cycles, self.cycles)

    @property
    def difference_in_cycles(self) -> float | None:
        """Measured relative to predicted, in cycles."""
        return _over(self.cycles.step, self.predicted_cycles) if self.cycles else None

    @property
    def in_place(self) -> float | None:
        """The attention in place relative to alone, in cycles if they are known: 0.02 means 2 % more."""
        parts = self.cycles or self.ms
        return _over(parts.attention, parts.alone)

    @property
    def limit(self) -> Range | None:
        """Speed-up of the reference row's step if its attention took no time."""
        return limit_of((self.first or self).record)

    @property
    def saved(self) -> float | None:
        """Reduction of this row's step as a share of the reference row's attention time: 1 is the limit."""
        if self.first is None:
            return None
        return (self.first.ms.step - self.ms.step) / (self.first.ms.attention + self.first.ms.copies)

    @property
    def residues(self) -> dict[str, float]:
        """Parts of the difference between measured and predicted, in ms, by `RESIDUES`; empty for the reference row."""
        if self.first is None or self.predicted_ms is None:
            return {}
        difference = self.ms.step - self.predicted_ms
        if self.cycles is None or self.first.cycles is None or self.predicted_cycles is None:
            mine, first, ms_each, rest = self.ms, self.first.ms, 1.0, difference
        else:
            mine, first, ms_each = self.cycles, self.first.cycles, self.ms.step / self.cycles.step
            rest = (mine.step - self.predicted_cycles) * ms_each
        found = {
            "in_place": 0.0
            if mine.alone is None or first.alone is None
            else ((mine.attention - mine.alone) - (first.attention - first.alone)) * ms_each,
            "copies": (mine.copies - first.copies) * ms_each,
            "gaps": (mine.gaps - first.gaps) * ms_each,
        }
        return found | {"clock": difference - rest, "unexplained": rest - sum(found.values())}

    @property
    def generation_s(self) -> tuple[float, float] | None:
        """A whole generation as predicted and as measured; None if none was run."""
        if self.first is None or self.predicted_ms is None:
            return None
        first, mine = (row.record.counters for row in (self.first, self))
        base, measured = first.get("generation_s"), mine.get("generation_s")
        calls, layers = mine.get("attention_calls"), mine.get("layers")
        if base is None or measured is None or not calls or not layers:
            return None
        dense = self.record.case.get("dense_steps") or 0 if "density" in mine else 0
        return base + (calls / layers - dense) * (self.predicted_ms - self.first.ms.step) / 1e3, measured


def attention_ms(record: Record) -> float | None:
    """Return the time of attention in a step with its copies, in ms; None if it was not timed or layers are unknown."""
    attention = _attention(record)
    return None if attention is None else attention.value


def limit_of(record: Record) -> Range | None:
    """Return the speed-up of a row's step if its attention took no time; None if that is unknown or takes longer."""
    step, attention = range_of(record.time) if record.time else None, _attention(record)
    if step is None or attention is None or attention.value >= step.value or _other_timer(record):
        return None
    return limit(attention, step.minus(attention))


def _attention(record: Record) -> Range | None:
    times = [record.phases[name] for name in (ATTENTION, COPIES) if name in record.phases]
    known = [one for time in times if (one := _range(time)) is not None]
    calls = _calls(record)
    return added(known).times(calls) if ATTENTION in record.phases and len(known) == len(times) and calls else None


def reconcile(records: Sequence[Record], baseline: str | None) -> list[list[Reconciled]]:
    """Return tables of rows that compute the same, the reference row first; single rows are omitted.

    Args:
        records: of one case.
        baseline: the reference row, if it is among them; else the first row.
    """
    known: dict[float | None, list[Record]] = {}
    for record in records:
        step = record.time.median_ms if record.time else None
        if step and attention_ms(record) is not None and not (_longer_than_its_step(record) or _other_timer(record)):
            known.setdefault(record.counters.get(COMPUTED), []).append(record)
    tables = []
    for rows in known.values():
        rows.sort(key=lambda record: baseline not in (backend_name(record), record.backend))
        alone = all(ALONE in record.phases for record in rows)
        parts = [(_parts(record, _ms, alone), _parts(record, megacycles, alone)) for record in rows]
        with_clock = all(cycles is not None for _, cycles in parts)
        table: list[Reconciled] = []
        for record, (ms, cycles) in zip(rows, parts, strict=True):
            assert ms is not None  # the row has an attention time
            table.append(Reconciled(record, ms, cycles if with_clock else None, table[0] if table else None))
        tables.append(table)
    return [table for table in tables if len(table) > 1]


def megacycles(time: Time) -> float | None:
    """Return the median number of SM clock cycles per sample, in millions; None if no clock was read."""
    pairs = [(ms, mhz) for ms, mhz in zip(time.samples_ms, time.sm_mhz, strict=False) if mhz]
    return statistics.median(ms * mhz / 1e3 for ms, mhz in pairs) if pairs else None


def reconciled(title: str, records: Sequence[Record], baseline: str | None) -> list[Block]:
    """Return the tables of one case; none if the attention of fewer than two rows was timed."""
    other = [record for record in records if _other_timer(record)]
    late = [backend_name(record) for record in records if record not in other and _longer_than_its_step(record)]
    notes = [NOTE] + [
        f"left out: {', '.join(map(backend_name, other))}: attention was timed by another timer than the step, "
        "so that their difference says nothing"
    ] * bool(other)
    notes += [
        f"left out: {', '.join(late)}: attention took longer than the whole step; it has few samples, "
        "and another program or the host's launches may have delayed it"
    ] * bool(late)
    return [
        block
        for rows in reconcile(records, baseline)
        for block in (_explained(title, rows, notes), *_differences(title, rows))
    ]


def _longer_than_its_step(record: Record) -> bool:
    """Return whether the attention, in place or by itself times the calls of a step, takes longer than the step."""
    step, alone = record.time.median_ms if record.time else None, record.phases.get(ALONE)
    by_itself = (_ms(alone) or 0.0) * (record.counters.get("layers") or 0.0) if alone else 0.0
    return bool(step) and max(attention_ms(record) or 0.0, by_itself) >= (step or 0.0)


def _other_timer(record: Record) -> bool:
    """Return whether attention has the wall clock and the step a timer of the device: launches are in one of them alone."""
    there = record.phases.get(ATTENTION)
    return record.time is not None and there is not None and there.timer == "wall" != record.time.timer


def _ms(time: Time) -> float | None:
    return time.median_ms if time.busy_ms is None else time.busy_ms


def _range(time: Time) -> Range | None:
    """Return `_ms` with its range: the busy part of a median is as uncertain as the median."""
    whole, ms = range_of(time), _ms(time)
    return whole.times(ms / whole.value) if whole and whole.value and ms is not None else None


def _calls(record: Record) -> float | None:
    if "ranks" in record.counters:  # its attention alone overlaps a communication phase
        return None
    return record.counters.get("layers") if REQUESTS in record.counters else 1


def _parts(record: Record, read: Callable[[Time], float | None], alone: bool) -> Parts | None:
    """Return the known parts of a row, with times read by `read`; None if one is missing."""
    calls, time = _calls(record), record.time
    step = time.median_ms if time and read is _ms else read(time) if time else None
    found = {name: read(record.phases[name]) for name in (ATTENTION, COPIES, ALONE) if name in record.phases}
    if time is None or step is None or not calls or any(value is None for value in found.values()):
        return None
    known = {name: value for name, value in found.items() if value is not None}
    gap = 0.0 if time.busy_ms is None or not time.median_ms else max(0.0, 1 - time.busy_ms / time.median_ms)
    layers = record.counters.get("layers")
    return Parts(
        step=step,
        attention=known[ATTENTION] * calls,
        alone=known[ALONE] * layers if alone and layers else None,
        copies=known.get(COPIES, 0.0) * calls,
        gaps=gap * step,
    )


def _predicted(first: Parts, mine: Parts) -> float:
    return first.step - first.exchanged + mine.exchanged


def _over(measured: float, other: float | None) -> float | None:
    return measured / other - 1 if other and other > 0 else None


def _explained(title: str, rows: Sequence[Reconciled], notes: Sequence[str]) -> Block:
    unit = figures.unit_for(row.step_ms for row in rows)
    columns = [
        Column("backend", f"explained, {unit.name}", 0, number=False),
        Column("alone", "attention alone", 4),
        Column("attention", "attention", 2),
        Column("preparation", "preparation", 6),
        Column("share", "attention %", 3),
        Column("rest", "the rest", 5),
        Column("predicted", "predicted", 1),
        Column("measured", "measured", 0),
        Column("difference", "difference %", 1),
        Column("limit", "limit", 6),
        Column("limit_margin", "95 %", 7),
        Column("saved", "saved %", 6),
        Column("generation", "generation predicted s", 7),
        Column("generated", "measured s", 7),
    ]
    lines = [Line(row.record, _cells(row, unit)) for row in rows]
    return Block(title, None, filled(columns, lines), lines, notes=tuple(notes))


def _cells(row: Reconciled, unit: figures.Unit) -> dict[str, str]:
    preparation = row.record.phases.get(PREPARATION)
    generation = row.generation_s
    return {
        "backend": backend_name(row.record),
        "alone": figures.plain(unit.of(row.ms.alone)),
        "attention": figures.plain(unit.of(row.attention_ms)),
        "preparation": figures.plain(unit.of(_ms(preparation) if preparation else None)),
        "share": f"{100 * row.attention_ms / row.step_ms:.0f}",
        "rest": figures.plain(unit.of(row.step_ms - row.attention_ms)),
        "predicted": figures.plain(unit.of(row.predicted_ms)),
        "measured": figures.plain(unit.of(row.step_ms)),
        "difference": _percent(row.difference),
        **(limit_cells(row.limit) if row.first is None else {}),
        "saved": "" if row.saved is None else f"{100 * row.saved:.0f}",
        "generation": figures.plain(generation[0] if generation else None),
        "generated": figures.plain(generation[1] if generation else row.record.counters.get("generation_s")),
    }


def _differences(title: str, rows: Sequence[Reconciled]) -> list[Block]:
    """Return the parts of the differences, in ms and in cycles; none if neither clocks nor gaps are known."""
    if not any(row.cycles or row.ms.gaps or row.ms.alone is not None for row in rows):
        return []
    unit = figures.unit_for(row.step_ms for row in rows)
    columns = [
        Column("backend", f"difference, {unit.name}", 0, number=False),
        Column("in_place", "in place", 2),
        Column("copies", "copies", 3),
        Column("gaps", "gaps", 3),
        Column("clock", "clock", 2),
        Column("unexplained", "unexplained", 1),
        Column("share", "% of the step", 0),
        Column("mhz", "SM MHz", 4),
        Column("predicted", "predicted Mcycles", 5),
        Column("measured", "measured Mcycles", 5),
        Column("cycles", "difference %", 1),
        Column("place", "in place against alone %", 4),
    ]
    lines = [Line(row.record, _difference_cells(row, unit)) for row in rows]
    note = "in place, copies, gaps, clock, unexplained: what measured and predicted differ by, against the first row"
    return [Block(title, None, filled(columns, lines), lines, notes=(note,))]


def _difference_cells(row: Reconciled, unit: figures.Unit) -> dict[str, str]:
    residues = row.residues
    # Differences of equal times that are rounding errors are ignored.
    least = 1e-9 * row.step_ms
    known = {name: ms if abs(ms) > least else 0.0 for name, ms in residues.items()}
    shown = {name: f"{known[name] * unit.per_ms:+.3g}" for name in RESIDUES if name in known}
    if row.cycles is None:
        shown.pop("clock", None)
    if row.ms.alone is None:
        shown.pop("in_place", None)
    return shown | {
        "backend": backend_name(row.record),
        "share": f"{100 * residues['unexplained'] / row.step_ms:+.1f}" if residues else "",
        "mhz": f"{1e3 * row.cycles.step / row.step_ms:.0f}" if row.cycles else "",
        "predicted": figures.plain(row.predicted_cycles),
        "measured": figures.plain(row.cycles.step if row.cycles else None),
        "cycles": _percent(row.difference_in_cycles),
        "place": _percent(row.in_place),
    }


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:+.1f}"
