"""Comparison of two groups of runs: verdicts on the rows of both, and the rows in only one."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from statistics import median

from attnbench.errors import UsageError, refusal, unknown
from attnbench.record import Environment, Run
from attnbench.store.environments import environment_of, machine_words
from attnbench.verdict.change import Change, Diff
from attnbench.verdict.contrast import clock_change, share
from attnbench.verdict.judge import Judged, judge
from attnbench.verdict.levels import Leveled, levels
from attnbench.verdict.notes import notes_of, remark_of
from attnbench.verdict.shift import shift_of_all
from attnbench.verdict.sides import WHO, Row, lay_out, on_other_gpu, turned_of
from attnbench.verdict.together import steady
from attnbench.verdict.yardsticks import NAME as YARDSTICKS
from attnbench.verdict.yardsticks import label, yardstick_rows

SAME_WITHIN = 0.03
"""Default of the largest change that the verdict "same" excludes."""


def diff(
    a: Sequence[Run],
    b: Sequence[Run],
    *,
    references: Sequence[str] | None = None,
    across: Collection[str] = (),
    same_within: float = SAME_WITHIN,
) -> Diff:
    """Compare B with A.

    Args:
        a: runs of one side, at least one; every file and every replicate in it is a separate process.
        b: runs of the other.
        references: backends whose changes are attributed to the machine, or `yardsticks`; None for unchanged backends
            and the yardsticks; empty for none: the times themselves are judged.
        across: conditions (`sides.ACROSS`) that may differ.
        same_within: largest change, as a share, that "same" excludes.

    Raises:
        UsageError: no row is in both sides, the times were not measured alike, or a reference does not exist.
    """
    rows = lay_out(a, b, across)
    timed = [row for row in rows if row.timed(0) and row.timed(1)]
    may_cross = bool({"gpu", "card"} & {*across})
    apart = [] if may_cross else [row for row in timed if on_other_gpu(row, (a, b))]
    cases = _by_case(row for row in timed if row not in apart)
    yardsticks = [yardstick_rows(case) for case in cases]
    names = [[row.key[2] for row in case] + [None] * len(extra) for case, extra in zip(cases, yardsticks, strict=True)]
    whole = [[*case, *extra] for case, extra in zip(cases, yardsticks, strict=True)]
    chosen = _flags(cases, yardsticks, references)
    leveled = levels(whole, chosen)
    flags = steady(leveled, names, chosen) if references is None else chosen
    files = len(a), len(b)
    judged = judge(leveled, flags, files, math.log1p(same_within), names)
    shift = shift_of_all(leveled, names, judged, files, [[label(row) for row in extra] for extra in yardsticks])
    changes = [
        _change(*one, case)
        for case, found, verdicts in zip(whole, leveled, judged, strict=True)
        for one in zip(case, found, verdicts, strict=True)
    ]
    changes = [one for one, name in zip(changes, chain.from_iterable(names), strict=True) if name is not None]
    order = {row.key: place for place, row in enumerate(rows)}
    changes.sort(key=lambda one: order[one.key])
    return Diff(
        a_ids=tuple(run.id for run in a),
        b_ids=tuple(run.id for run in b),
        shift=shift,
        changes=tuple(changes),
        turned=tuple(turned_of(rows)),
        untimed=tuple(
            row.first(0)
            for row in rows
            if all(row.sides) and row.status(0) is row.status(1) and not (row.timed(0) and row.timed(1))
        ),
        removed=tuple(row.first(0) for row in rows if not row.sides[1]),
        added=tuple(row.first(1) for row in rows if not row.sides[0]),
        notes=tuple(notes_of(changes, (a, b), whole, chosen, flags, leveled, shift, may_cross=may_cross)),
        elsewhere=tuple(row.first(0) for row in apart),
        machines=tuple(_machines(a, b)),
        same_within=same_within,
    )


def _by_case(rows: Iterable[Row]) -> list[list[Row]]:
    cases: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        cases.setdefault(row.key[:2], []).append(row)
    return list(cases.values())


def _flags(
    cases: Sequence[Sequence[Row]], yardsticks: Sequence[Sequence[Row]], references: Sequence[str] | None
) -> list[list[bool]]:
    """Return which rows are references, with the yardsticks of each case after its rows."""
    if references is None:
        return [
            [row.stayed() for row in rows] + [True] * len(extra) for rows, extra in zip(cases, yardsticks, strict=True)
        ]
    there = {row.key[2] for rows in cases for row in rows} | ({YARDSTICKS} if any(yardsticks) else set())
    for name in references:
        if name not in there:
            raise (
                unknown(WHO, "--reference", name, there)
                if there
                else UsageError(refusal(WHO, "--reference", name, "has no time in both runs", "a backend of both"))
            )
    return [
        [row.key[2] in references for row in rows] + [YARDSTICKS in references] * len(extra)
        for rows, extra in zip(cases, yardsticks, strict=True)
    ]


def _change(row: Row, leveled: Leveled, judged: Judged, case: Sequence[Row]) -> Change:
    logs = [median(level.raw for level in side.values()) for side in leveled.sides]
    time, clock = logs[1] - logs[0], clock_change(leveled)
    cycles = None if clock is None else time + clock
    peaks = [_peak(row, side) for side in (0, 1)]
    return Change(
        a=next(iter(row.timed(0).values())),
        b=next(iter(row.timed(1).values())),
        verdict=judged.verdict,
        change=_share(judged.change),
        low=_share(judged.low),
        high=_share(judged.high),
        smallest=_share(judged.smallest),
        a_ms=math.exp(logs[0]),
        b_ms=math.exp(logs[1]),
        time_change=share(time),
        clock_change=_share(clock),
        cycles_change=_share(cycles),
        memory_change_mb=None if peaks[0] is None or peaks[1] is None else peaks[1] - peaks[0],
        processes=(len(row.timed(0)), len(row.timed(1))),
        references=tuple(case[one].key[2] for one in judged.references),
        remark=remark_of(row, judged, time, clock),
    )


def _machines(a: Sequence[Run], b: Sequence[Run]) -> list[str]:
    sides = [
        " / ".join(dict.fromkeys(" · ".join(machine_words(one)) for one in _environments(runs))) for runs in (a, b)
    ]
    if sides[0] == sides[1]:
        return [sides[0]] if sides[0] else []
    return [f"{name} {words}" for name, words in zip(("A", "B"), sides, strict=True)]


def _environments(runs: Sequence[Run]) -> list[Environment]:
    """Return the environments that records were measured in, in order."""
    measured = [(run, {record.environment: record for record in run.records}.values()) for run in runs]
    return [one for run, records in measured for record in records if (one := environment_of(run, record))]


def _peak(row: Row, side: int) -> float | None:
    peaks = [record.memory.peak_allocated_mb for record in row.timed(side).values() if record.memory]
    known = [peak for peak in peaks if peak is not None]
    return max(known) if known else None


def _share(log: float | None) -> float | None:
    return None if log is None or math.isnan(log) else share(log)
