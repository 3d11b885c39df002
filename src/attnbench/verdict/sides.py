"""The two groups of runs of a diff: their rows, the processes of each row, and which may not be compared."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from attnbench.errors import UsageError, refusal
from attnbench.record import Record, Run, Status
from attnbench.store.environments import device_name, environment_of, gpu_of
from attnbench.verdict.change import RowKey, Turned, key_of

WHO = "attnbench diff"
ACROSS = ("timer", "l2", "regime", "card", "gpu", "input")
"""Conditions that two runs must share unless the caller names them in `across`: card is the model, gpu the same GPU."""

Place = tuple[int, int, int]
"""File, replicate, and index among several rows of one name in it: one process of the row."""


@dataclass(slots=True)
class Row:
    """One case x backend x configuration with the records of all its processes, one dict per side."""

    key: RowKey
    sides: tuple[dict[Place, Record], dict[Place, Record]] = field(default_factory=lambda: ({}, {}))

    def first(self, side: int) -> Record:
        """Return the record of the first process."""
        return next(iter(self.sides[side].values()))

    def timed(self, side: int) -> dict[Place, Record]:
        """Return the processes with a time."""
        return {place: record for place, record in self.sides[side].items() if _is_timed(record)}

    def status(self, side: int) -> Status:
        """Return the status of the row: passed only if every process passed."""
        return self.worst(side).status

    def worst(self, side: int) -> Record:
        """Return a record of a process that did not pass, or else the first record."""
        lost = [record for record in self.sides[side].values() if record.status is not Status.PASSED]
        return lost[0] if lost else self.first(side)

    def stayed(self) -> bool:
        """Whether both sides ran the same thing: version and source are known and equal in all processes."""
        marks = {(record.version, record.source_hash) for side in self.sides for record in side.values()}
        return len(marks) == 1 and marks != {(None, None)}


def lay_out(a: Sequence[Run], b: Sequence[Run], across: Collection[str] = ()) -> list[Row]:
    """Return the rows of both sides, those of A first.

    Args:
        a: runs of one side; each is a process, or one process per replicate.
        b: runs of the other.
        across: names of `ACROSS` that may differ.

    Raises:
        UsageError: the sides have no row in common, or were measured under different conditions.
    """
    rows: dict[RowKey, Row] = {}
    for side, runs in enumerate((a, b)):
        for number, run in enumerate(runs):
            for record in run.records:
                there = rows.setdefault(key_of(record), Row(key_of(record))).sides[side]
                again = 0
                while (number, record.replicate, again) in there:
                    again += 1
                there[number, record.replicate, again] = record
    shared = [row for row in rows.values() if all(row.sides)]
    if not shared:
        names = [
            ", ".join(sorted({key_of(record)[2] for run in runs for record in run.records})[:3]) or "no row"
            for runs in (a, b)
        ]
        wrong = f"have no case and backend in common (A has {names[0]}, B has {names[1]})"
        raise UsageError(refusal(WHO, "RUN", f"{ids(a)} and {ids(b)}", wrong, "two runs of one suite"))
    _refuse_unlike(shared, (a, b), across)
    return list(rows.values())


def turned_of(rows: Sequence[Row]) -> list[Turned]:
    """Return the rows that have another status in B than in A."""
    return [Turned(row.worst(0), row.worst(1)) for row in rows if all(row.sides) and row.status(0) is not row.status(1)]


def on_other_gpu(row: Row, runs: tuple[Sequence[Run], Sequence[Run]]) -> bool:
    """Return whether a row was timed on another GPU in B than in A; False if either is unknown."""
    seen = [
        {gpu_of(runs[side][number], record) for (number, _, _), record in row.timed(side).items()} - {None}
        for side in (0, 1)
    ]
    return all(seen) and seen[0] != seen[1]


def ids(runs: Sequence[Run]) -> str:
    """Return the ids of the runs of a side."""
    return ",".join(run.id for run in runs)


def _refuse_unlike(rows: Sequence[Row], runs: tuple[Sequence[Run], Sequence[Run]], across: Collection[str]) -> None:
    """Raise UsageError for the first row whose times were measured under different conditions."""
    for row in rows:
        seen: dict[str, list[list[str]]] = {}
        for side in (0, 1):
            for (number, _, _), record in row.timed(side).items():
                for name, value in _conditions(runs[side][number], record):
                    values = seen.setdefault(name, [[], []])[side]
                    if name not in across and value is not None and value not in values:
                        values.append(value)
        for name, sides in seen.items():
            alone = next((side for side in (0, 1) if len(sides[side]) > 1), None)
            where, values = (
                ("between A and B", list(dict.fromkeys(sides[0] + sides[1])))
                if alone is None
                else (f"within {'AB'[alone]}", sides[alone])
            )
            if len(values) > 1:
                wrong = f"differ {where} ({row.key[1]} {row.key[2]})"
                raise UsageError(
                    refusal(WHO, name, ", ".join(values), wrong, "times taken alike", f"or say --across {name}")
                )


def _conditions(run: Run, record: Record) -> Iterator[tuple[str, str | None]]:
    time = record.time
    assert time is not None  # the caller passes timed records only
    yield "timer", time.timer
    yield "l2", time.l2
    yield "regime", time.regime
    environment = environment_of(run, record)
    yield "card", device_name(environment)
    yield "input", run.settings.input


def _is_timed(record: Record) -> bool:
    time = record.time
    return time is not None and any(one > 0.0 for one in (*time.samples_ms, time.median_ms or 0.0, time.mean_ms or 0.0))
