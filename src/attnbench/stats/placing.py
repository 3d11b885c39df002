"""What one stage of a race says of a contestant: how much slower than its heat's anchor, and how sure that is.

A heat gives five to a few dozen ratios within rounds.  Their median is the place; its standard error
comes from a scale of the noise that all contestants of the stage teach together, because five samples
teach none: the 75 % quantile of the differences between neighbouring rounds, which two peaks raise as
they should and one sample in twenty that is far out does not.  A contestant's own differences correct it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist, median

Times = Mapping[int, float]
"""Time by round, in milliseconds."""

KEPT = 0.75
"""Quantile of the differences of neighbouring rounds that the scale of the noise is taken from."""

TRUST = 8.0
"""Rounds that the scale of all is worth beside a contestant's own."""

MEDIAN_COST = math.sqrt(math.pi / 2.0)
"""Standard error of a median over that of a mean, normal noise, many samples: no fewer cost more."""


@dataclass(frozen=True, slots=True)
class Placing:
    """Log of a contestant's time over the anchor's, and its standard error."""

    log: float
    error: float
    "infinite where no round was shared with the anchor"
    anchor: str
    stage: int
    rounds: int
    ms: float
    "its time, at the clock that the anchor had in the stage"


def placings(
    anchor: str, heats: Sequence[Mapping[str, Times]], stage: int, *, tick_ms: float = 0.0
) -> dict[str, Placing]:
    """Place everyone who ran in a stage.

    Args:
        anchor: in every heat.
        heats: everyone's times.
        stage: its number.
        tick_ms: resolution of the timer.

    Returns:
        By name; the anchor itself stands at 0 without an error.
    """
    level = median(ms for times in heats for ms in times[anchor].values())
    logs = {name: log_ratios(times[anchor], own) for times in heats for name, own in times.items() if name != anchor}
    scale = pooled_scale(list(logs.values()))
    placed = {anchor: Placing(0.0, 0.0, anchor, stage, sum(len(times[anchor]) for times in heats), level)}
    for name, own, middle in ((name, own, median(own.values())) for times in heats for name, own in times.items()):
        if name == anchor:
            continue
        if not (found := logs[name]):
            placed[name] = Placing(math.log(middle / level), math.inf, anchor, stage, len(own), middle)
            continue
        # A median of few sits on the timer's grid: what a tick hides, more rounds do not show.
        tick = tick_ms / middle / math.sqrt(3.0)
        error = math.hypot(own_scale(found, scale) * MEDIAN_COST / math.sqrt(len(found)), tick)
        placed[name] = Placing(median(found), error, anchor, stage, len(found), level * math.exp(median(found)))
    return placed


def slower(placed: Mapping[str, Placing], risk: float) -> set[str]:
    """Who is not the fastest, at a risk of saying so of the fastest.

    Half of the risk goes to the test against the anchor, which was named before the stage: whoever is the
    fastest, one test decides about it.  The other half goes to the one against the leader that the stage
    itself shows, which may lead by luck: it is shared among all who might.

    Args:
        placed: of one stage, all against the same anchor.
        risk: of naming the fastest.
    """
    compared = {name: one for name, one in placed.items() if math.isfinite(one.error)}
    if not compared:
        return set()
    before = NormalDist().inv_cdf(1.0 - risk / 2.0)
    after = NormalDist().inv_cdf(1.0 - risk / 2.0 / len(compared))
    leader = min(compared.values(), key=lambda one: one.log)
    return {
        name
        for name, one in compared.items()
        if (one.log > before * one.error and one.error > 0.0)
        or one.log - leader.log > after * math.hypot(one.error, leader.error)
    }


def hope(log: float, error: float) -> float:
    """Expected gain over someone who is `log` faster (above 0: slower), where there is one."""
    if error <= 0.0:
        return max(0.0, -log)
    normal = NormalDist()
    return error * normal.pdf(log / error) - log * normal.cdf(-log / error)


def prior(placed: Mapping[str, Placing]) -> tuple[float, float] | None:
    """Mean and variance that the true logs of a stage have, beyond the noise of its placings; None of fewer than two."""
    known = [one for name, one in placed.items() if math.isfinite(one.error) and name != one.anchor]
    if len(known) < 2:
        return None
    mean = sum(one.log for one in known) / len(known)
    seen = sum((one.log - mean) ** 2 for one in known) / (len(known) - 1)
    noise = sum(one.error**2 for one in known) / len(known)
    return mean, max(0.0, seen - noise)


def log_ratios(anchor: Times, own: Times) -> list[float]:
    """Logarithms of own time over the anchor's, in the rounds both have."""
    return [math.log(own[index] / anchor[index]) for index in sorted(anchor.keys() & own.keys())]


def pooled_scale(series: Sequence[Sequence[float]]) -> float:
    """Standard deviation of one log ratio; 0 where nobody has two."""
    steps = sorted(step for logs in series for step in _steps(logs))
    if not steps:
        return 0.0
    place = min(len(steps) - 1, math.ceil(KEPT * len(steps)) - 1)
    return steps[place] / (NormalDist().inv_cdf((1.0 + KEPT) / 2.0) * math.sqrt(2.0))


def own_scale(logs: Sequence[float], scale: float) -> float:
    """A contestant's own standard deviation, drawn towards that of all; never under what its own rounds show.

    Drawn towards the quiet ones, a noisy one would be sure of too much: the best was dropped, or cut, so.
    """
    steps = _steps(logs)
    if not steps:
        return scale
    own = median(steps) / (NormalDist().inv_cdf(0.75) * math.sqrt(2.0))
    return max(own, math.sqrt((TRUST * scale**2 + len(steps) * own**2) / (TRUST + len(steps))))


def _steps(logs: Sequence[float]) -> list[float]:
    return [abs(after - before) for before, after in pairwise(logs)]
