"""The level of every row in every process: its time at one clock, free of what the group shared.

**Clock.**  Under a falling clock a kernel that computes takes longer in proportion, one that waits for
memory hardly.  How a row answers, the exponent of the clock in its time, is read off its own samples,
which carry their clocks: on a power-limited card they vary by percents within a group, and that is where
the exponent matters.  Where they tell nothing it is 0.75 +- 0.35 (measured on an H200: 0.9 to 1.0 for
fused kernels, 0.4 for unfused ones), and the doubt goes into the interval.  All samples of a row, on
both sides, are brought to one clock by it.

**Drift.**  From each sample the median deviation of the references in the same round is taken: a drift
that moves all of a group goes with it, and one reference that jumps moves nobody where there are three.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from attnbench.record import Record, Time
from attnbench.stats.series import centres, medians
from attnbench.verdict.sides import Place, Row

EXPONENT, EXPONENT_DOUBT = 0.75, 0.35
LEAST_DOUBT = 0.05
"""Of an exponent read off samples: the probe reads the clock at the ends of a sample, not all through it."""

WINSOR = 6.0
"""Median absolute deviations beyond which a sample counts as that far, when exponents are fitted."""

FEWEST = 3
"""Samples below which a process says nothing of its error: two lie close together by luck one time in ten."""

IMPORTED_ERROR, IMPORTED_DEGREES = 0.01, 4
"""Standard error, at least, of a time without samples, and what that is taken for: nobody knows how it was taken."""

FEWEST_PAIRED = 6
CELLS = 1_500_000
"""Samples held in one matrix: bounds the memory of a diff of long series."""


@dataclass(slots=True)
class Level:
    """One row in one process; logarithms."""

    value: float
    "of the time in ms, at the row's clock, drift taken out"
    error: float | None
    "standard error that the samples give it; None from fewer than `FEWEST` of them"
    raw: float
    "of the median time as it is"
    clock: float | None
    "of the median SM clock in MHz"
    degrees: int = 0
    "of freedom, with which the samples show the error"


@dataclass(slots=True)
class Leveled:
    """A row with its levels, a dict a side."""

    sides: tuple[dict[Place, Level], dict[Place, Level]]
    exponent_doubt: float
    "standard error of the clock's exponent; 0 where clocks are not known and nothing was corrected"


@dataclass(slots=True)
class _Series:
    row: int
    case: int
    side: int
    place: Place
    time: Time


def levels(cases: Sequence[Sequence[Row]], references: Sequence[Sequence[bool]]) -> list[list[Leveled]]:
    """Levels of all rows, case by case.

    Args:
        cases: rows that were measured together, with a time in at least one process of both sides.
        references: whether each of them is one.
    """
    found = []
    for block, flags in _blocks(cases, references):
        found += _levels(block, flags)
    return found


def _blocks(cases: Sequence[Sequence[Row]], flags: Sequence[Sequence[bool]]) -> Iterator[tuple[list[Any], list[Any]]]:
    start = cells = 0
    for index, rows in enumerate(cases):
        cells += sum(
            len(record.time.samples_ms)
            for row in rows
            for side in (0, 1)
            for record in row.timed(side).values()
            if record.time
        )
        if cells >= CELLS or index == len(cases) - 1:
            yield list(cases[start : index + 1]), list(flags[start : index + 1])
            start, cells = index + 1, 0


def _levels(cases: list[Sequence[Row]], flags: list[Sequence[bool]]) -> list[list[Leveled]]:
    import numpy as np

    flat = [row for rows in cases for row in rows]
    is_reference = [flag for rows in flags for flag in rows]
    found = [Leveled(({}, {}), 0.0) for _ in flat]
    series: list[_Series] = []
    number = 0
    for case, rows in enumerate(cases):
        for row in rows:
            for side in (0, 1):
                for place, record in row.timed(side).items():
                    if (time := _sampled(record)) is None:
                        found[number].sides[side][place] = _imported(row, record)
                    else:
                        series.append(_Series(number, case, side, place, time))
            number += 1
    if series:
        with np.errstate(divide="ignore", invalid="ignore"):
            _measure(series, is_reference, found)
    ends = iter(found)
    return [[next(ends) for _ in rows] for rows in cases]


def _measure(series: list[_Series], is_reference: list[bool], found: list[Leveled]) -> None:
    import numpy as np

    groups: dict[tuple[int, int, Place], list[int]] = {}
    for index, one in enumerate(series):
        groups.setdefault((one.case, one.side, one.place), []).append(index)
    times, clocks = _matrices(series, groups)
    raw = medians(times)
    own = np.array([one.row for one in series])
    clock, doubts = _to_one_clock(times, clocks, raw, own, np.array([one.side for one in series]), len(found))
    middles, corners = medians(times), np.array([one.time.tick_ms or 0.0 for one in series]) / np.exp(raw)
    for members in groups.values():
        if len(members) > 1:
            flags = [is_reference[series[index].row] for index in members]
            _take_drift(times, middles, corners, members, flags)
    values, errors = centres(times, corners)
    counts = np.isfinite(times).sum(axis=1)
    for index, one in enumerate(series):
        found[one.row].exponent_doubt = float(doubts[one.row])
        found[one.row].sides[one.side][one.place] = Level(
            float(values[index]),
            float(errors[index]) if counts[index] >= FEWEST else None,
            float(raw[index]),
            None if math.isnan(clock[index]) else float(clock[index]),
            int(counts[index]) - 1,
        )


def _matrices(series: list[_Series], groups: dict[tuple[int, int, Place], list[int]]) -> tuple[Any, Any]:
    """Logarithms of times and clocks, a row a series; a column is one round within each group."""
    import numpy as np

    columns: list[Any] = [None] * len(series)
    width = 0
    for members in groups.values():
        rounds = [series[index].time.rounds for index in members]
        aligned = all(one == rounds[0] for one in rounds) and len(set(rounds[0])) == len(rounds[0])
        place = None if aligned else {one: at for at, one in enumerate(sorted({r for one in rounds for r in one}))}
        for index in members:
            time = series[index].time
            if place is not None and time.rounds:
                columns[index] = np.array([place[one] for one in time.rounds])
            width = max(width, len(time.samples_ms) if place is None else len(place), len(time.samples_ms))
    times, clocks = (np.full((len(series), width), math.nan) for _ in range(2))
    for index, one in enumerate(series):
        samples = np.array(one.time.samples_ms)
        at = slice(len(samples)) if columns[index] is None else columns[index]
        times[index, at] = np.log(np.where(samples > 0.0, samples, math.nan))
        if one.time.sm_mhz:
            clocks[index, at] = np.log(np.array(one.time.sm_mhz, dtype=float))
    return times, clocks


def _to_one_clock(times: Any, clocks: Any, raw: Any, own: Any, sides: Any, rows: int) -> tuple[Any, Any]:
    """Bring times to the row's clock, in place.

    Returns:
        The median clock of each series, and the doubt of each row's exponent.
    """
    import numpy as np

    clock = medians(clocks)
    # A row with a series whose clock was not read is left as it is, or its sides would be treated unlike.
    lacking = np.bincount(own, np.isnan(clock), minlength=rows) > 0
    if lacking.all():
        return np.where(lacking[own], math.nan, clock), np.zeros(rows)
    x = np.nan_to_num(clocks - clock[:, None])
    y = np.where(np.isfinite(clocks), times - raw[:, None], 0.0)
    reach = WINSOR * np.maximum(medians(np.abs(times - raw[:, None])), 1e-5)[:, None]
    y = np.nan_to_num(np.clip(y, -reach, reach))

    def gathered(values: Any) -> Any:
        return np.bincount(own, values, minlength=rows)

    squares, products = gathered((x * x).sum(axis=1)), gathered((x * y).sum(axis=1))
    counts = gathered(np.isfinite(times).sum(axis=1))
    moved = squares > 0.0  # a clock that stood still tells nothing, however equal the samples are
    slope = -products / np.where(moved, squares, 1.0)
    residual = gathered(((y + slope[own][:, None] * x) ** 2).sum(axis=1)) / np.maximum(counts - 2, 1)
    variance = np.where(moved, residual / np.maximum(squares, 1e-12) + LEAST_DOUBT**2, math.inf)
    weight = 1.0 / variance + 1.0 / EXPONENT_DOUBT**2
    exponent = np.clip((slope / variance + EXPONENT / EXPONENT_DOUBT**2) / weight, 0.0, 1.2)
    exponent = np.where(lacking, 0.0, exponent)
    means = [
        np.bincount(own, np.where(sides == side, np.nan_to_num(clock), 0.0), minlength=rows)
        / np.maximum(np.bincount(own, sides == side, minlength=rows), 1)
        for side in (0, 1)
    ]
    middle = (means[0] + means[1]) / 2.0
    offsets = np.where(np.isfinite(clocks), clocks, clock[:, None]) - middle[own][:, None]
    times += np.nan_to_num(exponent[own][:, None] * offsets)
    clock = np.where(lacking[own], math.nan, clock)
    return clock, np.where(lacking, 0.0, np.sqrt(1.0 / weight))


def _take_drift(times: Any, middles: Any, corners: Any, members: list[int], flags: list[bool]) -> None:
    """Take from each series of a group what its references did in the same round, in place."""
    import numpy as np

    references = [index for index, flag in zip(members, flags, strict=True) if flag]
    if not references:
        return
    deviations = {index: times[index] - middles[index] for index in references}
    usual = float(np.median(corners[members]))
    drift = _middle(list(deviations.values()))  # rounds without a yardstick have those of the others
    new = {}
    for index, flag in zip(members, flags, strict=True):
        others = [deviations[one] for one in references if one != index] if flag else None
        if others is not None and not others:
            continue
        shared = drift if others is None else _middle(others)
        paired = times[index] - shared
        if np.isfinite(paired).sum() >= FEWEST_PAIRED:
            new[index] = paired
            corners[index] = math.hypot(corners[index], usual) / math.sqrt(2.0)
    for index, paired in new.items():
        times[index] = paired


def _middle(deviations: list[Any]) -> Any:
    """Median of the deviations of each round; NaN where there is none."""
    import numpy as np

    return deviations[0] if len(deviations) == 1 else medians(np.array(deviations).T)


def _sampled(record: Record) -> Time | None:
    time = record.time
    return time if time is not None and any(sample > 0.0 for sample in time.samples_ms) else None


def _imported(row: Row, record: Record) -> Level:
    """The level of a time without samples: by medians where all processes of a row have one, else by means."""
    time = record.time
    assert time is not None  # rows come with a time
    times = [one.time for side in (0, 1) for one in row.timed(side).values() if one.time]
    figure = time.median_ms if all(one.samples_ms or one.median_ms for one in times) else time.mean_ms
    raw = math.log(figure or time.median_ms or time.mean_ms or math.nan)
    return Level(raw, _imported_error(time), raw, None, IMPORTED_DEGREES)


def _imported_error(time: Time) -> float:
    middle, error = time.mean_ms or time.median_ms or math.nan, 0.0
    if time.std_ms is not None and time.num_samples:
        error = time.std_ms / middle / math.sqrt(time.num_samples)
    elif time.min_ms is not None:
        error = (middle - time.min_ms) / middle / 4.0
    return max(IMPORTED_ERROR, error)
