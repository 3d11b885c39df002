"""Where finalists stand after a final of several heats, and by how much a session leaves one off.

Within a heat a configuration keeps its memory, its code and what else a session lays out; the next heat
lays it out anew.  Samples of one heat say nothing of that offset.  Its variance is what heats differ by beyond
the errors of their samples, and every level has a share of it in its error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from attnbench.stats.placing import Placing, Times, log_ratios
from attnbench.stats.series import centres
from attnbench.stats.summary import FEWEST_FOR_INTERVAL

_APART = 1_000_000
"""Rounds between the first of one heat and the first of the next, where they are joined."""


def joined(heats: Sequence[Mapping[str, Times]]) -> dict[str, dict[int, float]]:
    """The samples of several heats of the same names, rounds numbered apart."""
    return {
        name: {_APART * number + index: ms for number, heat in enumerate(heats) for index, ms in heat[name].items()}
        for name in heats[0]
    }


def with_offset(placing: Placing, offset: float) -> Placing:
    """A placing whose error has the offsets of both sides in it; an anchor stands at 0 without an error."""
    return (
        placing if placing.error == 0.0 else replace(placing, error=math.hypot(placing.error, math.sqrt(2.0) * offset))
    )


def final_levels(
    heats: Sequence[Mapping[str, Times]], tick_ms: float
) -> tuple[dict[str, float], dict[str, float], float]:
    """Level of each finalist as a logarithm, its standard error, and that of an offset.

    Args:
        heats: of the same names; at least one.
        tick_ms: resolution of the timer.
    """
    import numpy as np

    names = list(heats[0])
    found = [_heat_levels(heat, tick_ms) for heat in heats]
    logs, errors = (np.array([[one[part][name] for name in names] for one in found]) for part in (0, 1))
    logs -= logs.mean(axis=1, keepdims=True)
    levels, within = logs.mean(axis=0), (errors**2).mean(axis=0)
    offset = 0.0
    if len(heats) > 1 and len(names) > 1:
        between = ((logs - levels) ** 2).sum(axis=0) / (len(heats) - 1) * len(names) / (len(names) - 1)
        variance = float(np.median(between))
        for _ in range(5):  # weights by what each one's spread is known to, which the offset itself is part of
            weights = 1.0 / (within + variance + 1e-12) ** 2
            variance = max(0.0, float((weights * (between - within)).sum() / weights.sum()))
        offset = math.sqrt(variance)
    errors = np.sqrt((within + offset**2) / len(heats))
    return (
        dict(zip(names, map(float, levels), strict=True)),
        dict(zip(names, map(float, errors), strict=True)),
        offset,
    )


def _heat_levels(times: Mapping[str, Times], tick_ms: float) -> tuple[dict[str, float], dict[str, float]]:
    """Level of each finalist in one heat as a logarithm, and the standard error that its samples give it.

    Within rounds that all share each is measured from the middle of the round; where the heat had to be
    taken in parts, which share no round, from the anchor.
    """
    import numpy as np

    names = list(times)
    if len(names) == 1:
        return {names[0]: 0.0}, {names[0]: 0.0}
    common = sorted(set.intersection(*(set(own) for own in times.values())))
    rows: Any
    if len(common) >= FEWEST_FOR_INTERVAL:
        rows = np.log([[own[index] for index in common] for own in times.values()])
        rows -= np.median(rows, axis=0)
    else:
        pairs = [log_ratios(times[names[0]], own) for own in times.values()]
        rows = np.full((len(pairs), max(map(len, pairs), default=1) or 1), math.nan)
        for row, logs in zip(rows, pairs, strict=True):
            row[: len(logs)] = logs
        if not np.isfinite(rows).any(axis=1).all():
            medians = [math.log(median(own.values())) for own in times.values()]
            return dict(zip(names, medians, strict=True)), dict.fromkeys(names, 0.0)
    corners = np.array([tick_ms / median(own.values()) for own in times.values()])
    middle, errors = centres(rows, corners)
    return (
        dict(zip(names, map(float, middle), strict=True)),
        dict(zip(names, map(float, np.nan_to_num(errors)), strict=True)),
    )
