"""Rows that moved together: a change that one row may have by chance, a dozen do not have alike.

How far two processes of the same code lie apart in one row is that row's own: its placement, its heat.
So many rows that moved by the same amount show a change that is far below what one of them could show.
The change of a group of rows is the common shift of its cases (`stats.signed_rank`, which holds under
heavy tails and outliers), one value a case: rows of a case share references.

A process may also move all rows of a backend alike, as where its code was placed does.  Cases do not show that, but
replicates do: how far the middle of a group lies apart from process to process, drawn towards what the groups of the
diff have in common (`stats.moderated`), bounds the interval too.  One process a side does not show it either: there a
group has to move further.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, stdev

from attnbench.stats.moderated import prior_of, quantile
from attnbench.stats.ratio import RESOLUTION
from attnbench.stats.signed_rank import common_shift
from attnbench.verdict.contrast import Contrast, Contrasts
from attnbench.verdict.levels import Leveled
from attnbench.verdict.sides import Place

ALARMS = 0.01
"""Share of diffs of equal code in which any group may be reported to have moved."""

LEAST, LEAST_OF_ONE = math.log1p(0.01), math.log1p(0.02)
"""Smaller moves of a group are not called, with replicates and with one process a side: a process may compile, place
or heat all rows of a backend alike, and one by itself does not show it."""

_NOTHING = 1e-12
"""Variance of what does not vary."""

Names = Sequence[Sequence[str | None]]
"""Backend of each row, case by case; None for a yardstick."""

Values = list[list[float]]
"""Changes of a group's rows, one list per case."""


@dataclass(frozen=True, slots=True)
class Move:
    """The common change of a group of rows; logarithms of B over A."""

    change: float
    low: float
    high: float
    cases: int
    least: float = LEAST
    "smaller moves are not called"

    @property
    def is_shown(self) -> bool:
        """Beyond what chance and a process as a whole can do."""
        return abs(self.change) > self.least and (self.low > 0.0 or self.high < 0.0)


def move_of(values: Values, groups: int = 1) -> Move | None:
    """Return the common change of a group.

    Args:
        values: changes of its rows, case by case.
        groups: number of groups that are tested in one diff.

    Returns:
        None where fewer than two cases have a value.
    """
    by_case = [median(members) for members in values if members]
    if len(by_case) < 2:
        return None
    confidence = 1.0 - ALARMS / groups
    centre, interval = common_shift(by_case, confidence)
    if interval is None:  # too few cases for a rank test
        centre = fmean(by_case)
        reach = quantile((1.0 + confidence) / 2.0, len(by_case) - 1) * stdev(by_case) / math.sqrt(len(by_case))
        interval = centre - reach, centre + reach
    least = math.log1p(RESOLUTION)
    return Move(centre, min(interval[0], centre - least), max(interval[1], centre + least), len(by_case))


def moves_of(contrasts: Contrasts, names: Names) -> dict[str | None, Move]:
    """What the rows of each backend changed by together against their references, and under None all rows."""
    groups: dict[str | None, list[list[Contrast]]] = {None: []}
    for rows, kinds in zip(contrasts, names, strict=True):
        found: dict[str | None, list[Contrast]] = {None: []}
        for one, name in zip(rows, kinds, strict=True):
            if one is not None and name is not None and one.has_reference:
                found.setdefault(name, []).append(one)
                found[None].append(one)
        for name, members in found.items():
            groups.setdefault(name, []).append(members)
    values = {name: [[one.change for one in members] for members in cases] for name, cases in groups.items()}
    moves = {name: move_of(cases, len(groups)) for name, cases in values.items()}
    if (whole := moves[None]) is not None and not _all_went_along(whole, values):
        del moves[None]
    known = {name: move for name, move in moves.items() if move is not None}
    reaches = _reaches(groups, 1.0 - ALARMS / len(groups))
    return {name: _bounded(move, reaches.get(name)) for name, move in known.items()}


def _bounded(move: Move, reach: float | None) -> Move:
    if reach is None:
        return replace(move, least=LEAST_OF_ONE)
    return replace(move, low=min(move.low, move.change - reach), high=max(move.high, move.change + reach))


@dataclass(frozen=True, slots=True)
class _Apart:
    """How far the middle of a group lies apart from process to process."""

    variance: float
    "of one process"
    predicted: float
    "the same, were the rows of a process independent"
    degrees: int
    per_process: float
    "variance of the change over that of one process"


def _reaches(groups: Mapping[str | None, Sequence[Sequence[Contrast]]], confidence: float) -> dict[str | None, float]:
    """What processes can move each group by, where replicates tell."""
    apart = {name: one for name, cases in groups.items() if (one := _apart(cases)) is not None}
    backends = [one for name, one in apart.items() if name is not None]
    if not backends:
        return {}
    scale, freedom = prior_of([one.variance / one.predicted for one in backends], [one.degrees for one in backends])
    found = {}
    for name, one in apart.items():
        degrees = freedom + one.degrees
        variance = (freedom * scale * one.predicted + one.degrees * one.variance) / degrees
        found[name] = quantile((1.0 + confidence) / 2.0, degrees) * math.sqrt(variance * one.per_process)
    return found


def _apart(cases: Sequence[Sequence[Contrast]]) -> _Apart | None:
    """None where no side has two processes."""
    squares, degrees, per_process = 0.0, 0, 0.0
    for side in (0, 1):
        offsets: dict[Place, list[float]] = {}
        for members in cases:
            here: dict[Place, list[float]] = {}
            for one in members:
                middle = fmean(one.processes[side].values()) if one.processes[side] else 0.0
                for place, level in one.processes[side].items():
                    here.setdefault(place, []).append(level - middle)
            for place, levels in here.items():
                offsets.setdefault(place, []).append(median(levels))
        middles = [median(found) for found in offsets.values()]
        if not middles:
            return None
        squares += math.fsum((middle - fmean(middles)) ** 2 for middle in middles)
        degrees += len(middles) - 1
        per_process += 1.0 / len(middles)
    spreads = [one.spread for members in cases for one in members if one.spread is not None]
    if degrees < 1 or not spreads:
        return None
    predicted = max(math.pi / 2.0 * fmean(spreads) / len(spreads), _NOTHING)
    return _Apart(squares / degrees, predicted, degrees, per_process)


def _all_went_along(whole: Move, values: dict[str | None, Values]) -> bool:
    """Return whether each backend moved by at least half of the whole: a few that moved far must not stand for all."""
    sign = math.copysign(1.0, whole.change)
    return all(
        median(map(median, filter(None, members))) * sign > abs(whole.change) / 2.0
        for name, members in values.items()
        if name is not None
    )


def against_yardsticks(
    cases: Sequence[Sequence[Leveled]], names: Names, chosen: Sequence[Sequence[bool]]
) -> Move | None:
    """Return the change of the chosen rows against the yardsticks beside them.

    If the yardsticks disagree, the interval covers the results of both.
    """
    found: list[Move] = []
    for place in range(max(map(_yardsticks, names), default=0)):
        values: Values = []
        for rows, kinds, flags in zip(cases, names, chosen, strict=True):
            shifts = [shift_of(row) for row, name in zip(rows, kinds, strict=True) if name is None]
            if len(shifts) > place:
                values.append(
                    list(
                        _real(
                            shift_of(row) - shifts[place]
                            for row, name, flag in zip(rows, kinds, flags, strict=True)
                            if flag and name is not None
                        )
                    )
                )
        move = move_of(values)
        if move is None:
            return None
        found.append(move)
    if not found:
        return None
    return Move(
        fmean(one.change for one in found),
        min(one.low for one in found),
        max(one.high for one in found),
        min(one.cases for one in found),
    )


def steady(cases: Sequence[Sequence[Leveled]], names: Names, references: Sequence[Sequence[bool]]) -> list[list[bool]]:
    """Return the usable references: without unchanged rows if these moved against the yardsticks."""
    moved = against_yardsticks(cases, names, references)
    if moved is None or not moved.is_shown:
        return [list(flags) for flags in references]
    return [
        [flag and name is None for flag, name in zip(flags, kinds, strict=True)]
        for flags, kinds in zip(references, names, strict=True)
    ]


def shift_of(row: Leveled, raw: bool = False) -> float:
    """Return the change of a row's level, or of its time as measured; NaN if a side has none."""
    sides = [[level.raw if raw else level.value for level in side.values()] for side in row.sides]
    return fmean(sides[1]) - fmean(sides[0]) if all(sides) else math.nan


def _yardsticks(kinds: Iterable[str | None]) -> int:
    return sum(name is None for name in kinds)


def _real(values: Iterable[float]) -> Iterator[float]:
    return (value for value in values if not math.isnan(value))
