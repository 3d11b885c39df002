"""Levels of finalists after a final of several heats, and the variance that a session adds to them.

Within a heat a configuration keeps its memory, its code and everything else a session allocates; the next heat
allocates anew.  Samples of one heat do not show this offset.  Its variance is estimated as the difference between
heats beyond the errors of their samples, and every level's error contains a share of it.
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
"""Distance of round numbers between heats that are joined."""


def joined(heats: Sequence[Mapping[str, Times]]) -> dict[str, dict[int, float]]:
    """Join the samples of several heats of the same names, with distinct round numbers."""
    return {
        name: {_APART * number + index: ms for number, heat in enumerate(heats) for index, ms in heat[name].items()}
        for name in heats[0]
    }


def with_offset(placing: Placing, offset: float) -> Placing:
    """Add the offsets of both sides to the error of a placing; an anchor is at 0 without an error."""
    return (
        placing if placing.error == 0.0 else replace(placing, error=math.hypot(placing.error, math.sqrt(2.0) * offset))
    )


def final_levels(
    heats: Sequence[Mapping[str, Times]], tick_ms: float
) -> tuple[dict[str, float], dict[str, float], float]:
    """Return the level of each finalist as a logarithm, its standard error, and that of an offset.

    Args:
        heats: at least one, all with the same names.
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
        for _ in range(5):  # weights depend on the spread of each finalist, which includes the offset itself
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
    """Return the level of each finalist in one heat as a logarithm, and the standard error from its samples.

    If all share rounds, levels are relative to the middle of the round.  If the heat had to be measured in parts,
    which share no round, they are relative to the anchor.
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
