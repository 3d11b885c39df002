"""Detects a run that is slower or faster throughout, and whether the machine or the code is the cause.

Rows are judged against what is unchanged, so a shift of all of them is in no verdict.  The yardsticks separate the
causes: a shift of all rows against the yardsticks comes from the code (or what it is built with), a shift of the
yardsticks with all rows from the machine.  Without yardsticks the cause is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from attnbench.verdict.change import Shift
from attnbench.verdict.contrast import MACHINE, clock_change, share
from attnbench.verdict.judge import Judged
from attnbench.verdict.levels import Leveled
from attnbench.verdict.together import Names, against_yardsticks, shift_of

SEEN = math.log1p(0.01)
"""Least shift of all rows that is reported."""

ALIKE = 0.9
"""Least share of the cases that moved in the common direction."""

PART = 0.25
"""Least move of each backend, as a share of the whole."""

CERTAIN = 1.96
"""Standard deviations of whole runs (`contrast.MACHINE`) beyond which a shift of the times counts as shown."""


def shift_of_all(
    cases: Sequence[Sequence[Leveled]],
    names: Names,
    judged: Sequence[Sequence[Judged]],
    files: tuple[int, int],
    yardsticks: Sequence[Sequence[str]],
) -> Shift | None:
    """Return the common change of all rows; None if there is none, or it is too small to report.

    Args:
        cases: levels, including those of the yardsticks.
        names: backend of each row; None for a yardstick.
        judged: the verdicts.
        files: number of run files of each side.
        yardsticks: names of the yardsticks of each case.
    """
    rows = [[name is not None for name in kinds] for kinds in names]
    time = _common([[shift_of(row, raw=True) for row in found] for found in cases], names)
    moved = {name: median(values) for name, values in _yardsticks(cases, names, yardsticks).items()}
    of_code = against_yardsticks(cases, names, rows)
    compared = [
        one
        for found, flags in zip(judged, rows, strict=True)
        for one, flag in zip(found, flags, strict=True)
        if flag and one.change is not None
    ]
    own = _common([[math.nan if one.change is None else one.change for one in found] for found in judged], names)
    whole = median(_flat(cases, names, raw=True))
    shares = {name: share(value) for name, value in moved.items()}
    clocks = [change for found in cases for row in found if (change := clock_change(row)) is not None]
    clock = share(median(clocks)) if clocks else None
    if of_code is not None and of_code.is_shown and _is_common(cases, names, of_code.change, moved):
        return Shift(
            "code",
            share(of_code.change),
            share(of_code.low),
            share(of_code.high),
            share(whole),
            shares,
            clock,
            shown=True,
        )
    if moved and own is not None and {one.verdict for one in compared} in ({"slower"}, {"faster"}):
        return Shift("code", share(own), None, None, share(whole), shares, clock, shown=True)
    if time is None or abs(time) <= SEEN:
        return None
    along = bool(moved) and min(value * math.copysign(1.0, time) for value in moved.values()) > abs(time) / 2.0
    along |= abs(median(_flat(cases, names))) < abs(time) / 2.0  # most of it vanishes at one clock
    shown = abs(time) > CERTAIN * MACHINE * math.sqrt(1.0 / files[0] + 1.0 / files[1])
    return Shift("machine" if along else "unknown", share(time), None, None, share(time), shares, clock, shown)


def _is_common(cases: Sequence[Sequence[Leveled]], names: Names, change: float, moved: Mapping[str, float]) -> bool:
    """Return whether every backend moved, and not only the one with the most rows."""
    middle = sum(moved.values()) / len(moved)
    found = _common([[shift_of(row, raw=True) - middle for row in rows] for rows in cases], names)
    return found is not None and found * change > 0.0


def _common(values: Sequence[Sequence[float]], names: Names) -> float | None:
    """Return the median of the rows' values, if each backend and nearly every case moved in its direction."""
    backends: dict[str, list[float]] = {}
    medians = []
    for found, kinds in zip(values, names, strict=True):
        there = [
            (name, value)
            for name, value in zip(kinds, found, strict=True)
            if name is not None and not math.isnan(value)
        ]
        for name, value in there:
            backends.setdefault(name, []).append(value)
        medians += [median(value for _, value in there)] if there else []
    if not medians:
        return None
    whole = median(value for members in backends.values() for value in members)
    sign = math.copysign(1.0, whole)
    along = sum(value * sign > 0.0 for value in medians) >= ALIKE * len(medians)
    return whole if along and all(median(one) * sign > PART * abs(whole) for one in backends.values()) else None


def _flat(cases: Sequence[Sequence[Leveled]], names: Names, *, raw: bool = False) -> list[float]:
    shifts = [
        shift_of(row, raw)
        for rows, kinds in zip(cases, names, strict=True)
        for row, name in zip(rows, kinds, strict=True)
        if name is not None
    ]
    return [shift for shift in shifts if not math.isnan(shift)] or [0.0]


def _yardsticks(
    cases: Sequence[Sequence[Leveled]], names: Names, yardsticks: Sequence[Sequence[str]]
) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for rows, kinds, labels in zip(cases, names, yardsticks, strict=True):
        there = [row for row, name in zip(rows, kinds, strict=True) if name is None]
        for label, row in zip(labels, there, strict=True):
            found.setdefault(label, []).append(shift_of(row, raw=True))
    return found
