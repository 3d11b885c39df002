"""Rows that moved together: a change that one row may have by chance, a dozen do not have alike.

The distance of two processes of the same code is different in each row, as it depends on the row's placement and heat.
Many rows that moved by the same amount therefore show a change far below what a single row could show.
The change of a group of rows is the common shift of its cases (`stats.signed_rank`, which is valid under
heavy tails and outliers), with one value per case, because rows of a case share references.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

from attnbench.stats.moderated import quantile
from attnbench.stats.ratio import RESOLUTION
from attnbench.stats.signed_rank import common_shift
from attnbench.verdict.contrast import Contrasts
from attnbench.verdict.levels import Leveled

ALARMS = 0.01
"""Share of diffs of equal code in which any group may be reported to have moved."""

LEAST = math.log1p(0.01)
"""Smaller moves of a group are not reported: one process may compile, place or heat all of its rows alike."""

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

    @property
    def is_shown(self) -> bool:
        """Whether it is beyond chance and beyond the offset of a whole process."""
        return abs(self.change) > LEAST and (self.low > 0.0 or self.high < 0.0)


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
    """Return the common change of each backend's rows against their references, and under None that of all rows."""
    values: dict[str | None, Values] = {None: []}
    for rows, kinds in zip(contrasts, names, strict=True):
        found: dict[str | None, list[float]] = {None: []}
        for one, name in zip(rows, kinds, strict=True):
            if one is not None and name is not None and one.has_reference:
                found.setdefault(name, []).append(one.change)
                found[None].append(one.change)
        for name, members in found.items():
            values.setdefault(name, []).append(members)
    moves = {name: move_of(members, len(values)) for name, members in values.items()}
    if (whole := moves[None]) is not None and not _all_went_along(whole, values):
        del moves[None]
    return {name: move for name, move in moves.items() if move is not None}


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
