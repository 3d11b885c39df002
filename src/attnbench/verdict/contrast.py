"""The change of a row against its references, and its uncertainty from the samples alone.

A row's change is the difference between the sides of its mean levels (`levels`) over processes, minus the change of
its references in the same processes.  For a case without a reference, the unchanged rows of the other cases are used;
in a grid without any reference, none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import fmean, median

from attnbench.verdict.levels import Leveled
from attnbench.verdict.sides import Place

PROCESS = 0.005
"""Standard deviation of a row's time between processes, until it is measured."""

MACHINE = 0.01
"""The same for a whole run, which all its rows share."""

FEWEST_ELSEWHERE = 5
"""Least number of unchanged rows of other cases that replace a missing reference."""

SUSPICIOUS = 4.0
"""Multiple of the variance of one process from which differing references add doubt."""

NORMAL_MAD = 0.6745
"""Median absolute deviation of a standard normal."""

WIDEST = 20.0
"""Logarithm beyond which an end of an interval carries no information."""


def share(log: float) -> float:
    """Convert a change of a logarithm to a share: 0.02 means 2 % more."""
    return math.expm1(min(log, WIDEST))


@dataclass(slots=True)
class Contrast:
    """One row against its references, process by process."""

    row: Leveled
    references: tuple[int, ...]
    elsewhere: bool
    change: float
    relative: float
    counts: tuple[int, int]
    spread: float | None
    "variance of one process, measured by replicates"
    degrees: int
    predicted: float
    "variance of one process, from its samples and the declared lower limit"
    shown: float
    "degrees of freedom of the row's own part of it: few if it has few samples, or only processes show its spread"
    extra: float
    "variance that more processes do not reduce"
    blind: bool
    "the samples of one process say nothing of their own error"
    processes: tuple[Mapping[Place, float], Mapping[Place, float]] = field(default_factory=lambda: ({}, {}))
    "of each side by process: its level, less what its references did there"

    @property
    def per_process(self) -> float:
        """Variance of the change divided by that of one process."""
        return 1.0 / self.counts[0] + 1.0 / self.counts[1]

    @property
    def is_hopeless(self) -> bool:
        """Whether nothing shows the uncertainty of the change."""
        return self.blind and not self.degrees

    @property
    def has_reference(self) -> bool:
        """Whether the change of something unchanged has been subtracted."""
        return bool(self.references) or self.elsewhere


Contrasts = list[list[Contrast | None]]
"""Case by case; None for a row without a level on a side."""


def contrasts_of(
    cases: Sequence[Sequence[Leveled]], references: Sequence[Sequence[bool]], files: tuple[int, int]
) -> Contrasts:
    """Contrast every row with its references.

    Args:
        cases: from `levels`.
        references: which rows are unchanged; each is compared with the others.
        files: number of run files of each side.
    """
    pool = _Pool(cases, references)
    return [
        [_contrast(case, rows, index, pool, files) for index in range(len(rows))] for case, rows in enumerate(cases)
    ]


def clock_change(row: Leveled) -> float | None:
    """Return the logarithm of the clock in B over that in A; None where a process did not read it."""
    means = []
    for side in row.sides:
        clocks = [level.clock for level in side.values() if level.clock is not None]
        if not clocks or len(clocks) < len(side):
            return None
        means.append(fmean(clocks))
    return means[1] - means[0]


class _Pool:
    """The change of the machine as seen by the unchanged rows of the whole grid."""

    def __init__(self, cases: Sequence[Sequence[Leveled]], references: Sequence[Sequence[bool]]) -> None:
        self.flags = references
        self.shifts = [[_mean(row, 1) - _mean(row, 0) for row in rows] for rows in cases]
        self.raws = [[_mean(row, 1, raw=True) - _mean(row, 0, raw=True) for row in rows] for rows in cases]
        unchanged = [
            [(shift, raw) for shift, raw, flag in zip(*there, strict=True) if flag and not math.isnan(shift)]
            for there in zip(self.shifts, self.raws, references, strict=True)
        ]
        self._unchanged = [pair for pairs in unchanged for pair in pairs]
        self._ends = [0, *accumulate(map(len, unchanged))]

    def of_case(self, case: int, row: int) -> tuple[int, ...]:
        """Return the references of a row as indices of its case."""
        return tuple(
            index
            for index, flag in enumerate(self.flags[case])
            if flag and index != row and not math.isnan(self.shifts[case][index])
        )

    def elsewhere(self, case: int) -> tuple[float, float, float] | None:
        """Return the median shift of other cases' unchanged rows, level and raw, and the variance of the level.

        None where there are too few such rows.
        """
        import numpy as np

        mine = slice(self._ends[case], self._ends[case + 1])
        others = np.delete(self._unchanged, mine, axis=0)
        if len(others) < FEWEST_ELSEWHERE:
            return None
        shift, raw = np.median(others, axis=0)
        apart = np.median(np.abs(others[:, 0] - shift)) / NORMAL_MAD
        return float(shift), float(raw), _of_median(len(others)) * float(apart) ** 2


def _contrast(case: int, rows: Sequence[Leveled], index: int, pool: _Pool, files: tuple[int, int]) -> Contrast | None:
    row = rows[index]
    shift, raw = pool.shifts[case][index], pool.raws[case][index]
    if math.isnan(shift):
        return None
    mine = pool.of_case(case, index)
    elsewhere = None if mine else pool.elsewhere(case)
    processes = _against(rows, row, mine)
    values = tuple([*side.values()] for side in processes)
    spread, degrees = _spread(values)
    (predicted, shown), extra = _predicted(row), _clock_variance(row)
    blind = any(level.error is None for side in row.sides for level in side.values())
    shared = (0.0, 0.0)
    if mine:
        share = _of_median(len(mine))
        predicted += share * PROCESS**2  # the noise of their samples is already part of the row's, round by round
        extra += share * fmean(_clock_variance(rows[one]) for one in mine)
        extra += _disagreement([pool.shifts[case][one] for one in mine], predicted)
        shift = fmean(values[1]) - fmean(values[0])
        shared = (shift, median(pool.raws[case][one] for one in mine))
    elif elsewhere:
        shared = (elsewhere[0], elsewhere[1])
        extra += elsewhere[2]
    else:
        extra += MACHINE**2 * (1.0 / files[0] + 1.0 / files[1])
    return Contrast(
        row=row,
        references=mine,
        elsewhere=elsewhere is not None,
        change=shift if mine else shift - shared[0],
        relative=raw - shared[1],
        counts=(len(values[0]), len(values[1])),
        spread=spread,
        degrees=degrees,
        predicted=predicted,
        shown=float(degrees) if blind and degrees else shown,
        extra=extra,
        blind=blind,
        processes=processes,
    )


def _against(
    rows: Sequence[Leveled], row: Leveled, references: tuple[int, ...]
) -> tuple[dict[Place, float], dict[Place, float]]:
    """Level of a row in each process, a mapping a side, less what its references did in that process."""
    middles = {one: (_mean(rows[one], 0) + _mean(rows[one], 1)) / 2.0 for one in references}
    found: tuple[dict[Place, float], dict[Place, float]] = ({}, {})
    for side in (0, 1):
        for place, level in row.sides[side].items():
            offsets = [
                rows[one].sides[side][place].value - middles[one]
                for one in references
                if place in rows[one].sides[side]
            ]
            if offsets or not references:
                found[side][place] = level.value - (median(offsets) if offsets else 0.0)
        if not found[side]:  # no process has both: the means are all there is
            shared = median(_mean(rows[one], side) - middles[one] for one in references)
            found[side][next(iter(row.sides[side]))] = _mean(row, side) - shared
    return found


def _spread(values: Sequence[Sequence[float]]) -> tuple[float | None, int]:
    degrees = len(values[0]) + len(values[1]) - 2
    if degrees < 1:
        return None, 0
    squares = math.fsum((value - fmean(side)) ** 2 for side in values for value in side)
    return squares / degrees, degrees


def _predicted(row: Leveled) -> tuple[float, float]:
    """Return the variance of one process, and the degrees of freedom of its samples (Satterthwaite)."""
    levels = [level for side in row.sides for level in side.values()]
    errors = [level.error for level in levels if level.error is not None]
    sampled = fmean(error * error for error in errors) if errors else 0.0
    degrees = sum(level.degrees for level in levels)
    variance = PROCESS**2 + sampled
    return variance, degrees * (variance / sampled) ** 2 if sampled > 0.0 else math.inf


def _mean(row: Leveled, side: int, raw: bool = False) -> float:
    found = [level.raw if raw else level.value for level in row.sides[side].values()]
    return fmean(found) if found else math.nan


def _clock_variance(row: Leveled) -> float:
    return (row.exponent_doubt * (clock_change(row) or 0.0)) ** 2


def _disagreement(shifts: Sequence[float], predicted: float) -> float:
    """Return a variance for references that disagree: how far their median moves if one of them is left out.

    With two or three references, one that did change shifts the median; this shift is added as uncertainty.
    """
    if len(shifts) < 2:
        return 0.0
    middle = median(shifts)
    move = max(abs(median([*shifts[:one], *shifts[one + 1 :]]) - middle) for one in range(len(shifts)))
    return move * move if move * move > SUSPICIOUS * predicted else 0.0


def _of_median(count: int) -> float:
    """Return the variance of the median of `count` normal values, relative to the variance of one."""
    return (math.pi / 2.0) / (count + math.pi / 2.0 - 1.0)
