"""The level of every row in every process: its time at one clock, without drift that the group shared.

**Clock.**  Under a falling clock the time of a compute-bound kernel rises in proportion, that of a memory-bound one
hardly.  A row's response, the exponent of the clock in its time, is fitted to its own samples, which carry their
clocks: on a power-limited card clocks vary by percents within a group, and that is where the exponent matters.  Where
they do not vary it is 0.75 +- 0.35 (measured on an H200: 0.9 to 1.0 for fused kernels, 0.4 for unfused ones), and its
uncertainty is part of the interval.  All samples of a row, in both sides, are converted to one clock with it.

**Drift.**  The median deviation of the references in the same round is subtracted from each sample.  This removes
a drift that all of a group share; with three or more references, a jump of a single one has no effect.
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
"""Least standard error of a fitted exponent: the probe reads the clock at the ends of a sample, not throughout."""

WINSOR = 6.0
"""Median absolute deviations at which a sample is clipped when exponents are fitted."""

FEWEST = 3
"""Processes with fewer samples do not show their error: two samples lie close together by chance one time in ten."""

IMPORTED_ERROR, IMPORTED_DEGREES = 0.01, 4
"""Least standard error of a time without samples, and its degrees of freedom: how it was measured is unknown."""

FEWEST_PAIRED = 6
CELLS = 1_500_000
"""Samples per matrix; limits the memory of a diff of long series."""


@dataclass(slots=True)
class Level:
    """One row in one process; logarithms."""

    value: float
    "of the time in ms, at the row's clock and without drift"
    error: float | None
    "standard error from its samples; None for fewer than `FEWEST` samples"
    raw: float
    "of the median time as measured"
    clock: float | None
    "of the median SM clock in MHz"
    degrees: int = 0
    "of freedom of the error"


@dataclass(slots=True)
class Leveled:
    """A row with its levels, one dict per side."""

    sides: tuple[dict[Place, Level], dict[Place, Level]]
    exponent_doubt: float
    "standard error of the clock's exponent; 0 where clocks are unknown and nothing was corrected"


@dataclass(slots=True)
class _Series:
    row: int
    case: int
    side: int
    place: Place
    time: Time


def levels(cases: Sequence[Sequence[Row]], references: Sequence[Sequence[bool]]) -> list[list[Leveled]]:
    """Return the levels of all rows, case by case.

    Args:
        cases: rows that were measured together, with a time in at least one process of both sides.
        references: whether each of them is a reference.
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
    """Return logarithms of times and clocks: a row per series, a column per round within each group."""
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
    """Convert times to the row's clock, in place.

    Returns:
        The median clock of each series, and the uncertainty of each row's exponent.
    """
    import numpy as np

    clock = medians(clocks)
    # If one series of a row has no clock, none is converted: otherwise its sides would be treated differently.
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
    moved = squares > 0.0  # a constant clock gives no information, however equal the samples are
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
    """Subtract from each series of a group the drift of its references in the same round, in place."""
    import numpy as np

    references = [index for index, flag in zip(members, flags, strict=True) if flag]
    if not references:
        return
    deviations = {index: times[index] - middles[index] for index in references}
    usual = float(np.median(corners[members]))
    drift = _middle(list(deviations.values()))  # rounds without a yardstick use the other references
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
    """Return the level of a time without samples: from medians if all processes of a row have one, else from means."""
    time = record.time
    assert time is not None  # `levels` requires rows with a time
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
