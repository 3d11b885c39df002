"""How much slower a contestant is than its heat's anchor after one stage of a race, and its uncertainty.

A heat gives five to a few dozen ratios within rounds.  Their median is the placing.  Its standard error
comes from a noise scale pooled over all contestants of the stage, because five samples are too few to estimate
one: the 75 % quantile of the differences between neighbouring rounds, which two peaks increase, as
they should, and one far outlier in twenty samples does not.  A contestant's own differences correct it.
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
"""Quantile of the differences of neighbouring rounds that the noise scale is computed from."""

TRUST = 8.0
"""Weight of the pooled scale beside a contestant's own, in rounds."""

MEDIAN_COST = math.sqrt(math.pi / 2.0)
"""Standard error of a median over that of a mean, for normal noise and many samples; an upper limit for fewer."""


@dataclass(frozen=True, slots=True)
class Placing:
    """Logarithm of a contestant's time over the anchor's, and its standard error."""

    log: float
    error: float
    "infinite if it shares no round with the anchor"
    anchor: str
    stage: int
    rounds: int
    ms: float
    "its time, at the clock of the anchor in this stage"


def placings(
    anchor: str, heats: Sequence[Mapping[str, Times]], stage: int, *, tick_ms: float = 0.0
) -> dict[str, Placing]:
    """Place every contestant of a stage.

    Args:
        anchor: in every heat.
        heats: times of all contestants.
        stage: its number.
        tick_ms: resolution of the timer.

    Returns:
        Placings by name; the anchor itself is at 0 without an error.
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
        # A median of few samples lies on the timer's grid: more rounds do not reveal differences below a tick.
        tick = tick_ms / middle / math.sqrt(3.0)
        error = math.hypot(own_scale(found, scale) * MEDIAN_COST / math.sqrt(len(found)), tick)
        placed[name] = Placing(median(found), error, anchor, stage, len(found), level * math.exp(median(found)))
    return placed


def slower(placed: Mapping[str, Placing], risk: float) -> set[str]:
    """Return the contestants that are not the fastest, with a limited risk of including the fastest.

    Half of the risk is for the test against the anchor, which was chosen before the stage: for whichever contestant is
    the fastest, a single test decides.  The other half is for the test against the stage's own leader, which may lead
    by chance: it is divided among all contestants that might.

    Args:
        placed: of one stage, all against the same anchor.
        risk: of including the fastest.
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
    """Return the expected gain over a contestant that is `log` faster (above 0: slower), if there is one."""
    if error <= 0.0:
        return max(0.0, -log)
    normal = NormalDist()
    return error * normal.pdf(log / error) - log * normal.cdf(-log / error)


def prior(placed: Mapping[str, Placing]) -> tuple[float, float] | None:
    """Return mean and variance of the true logs of a stage, without their noise; None for fewer than two."""
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
    """Standard deviation of one log ratio; 0 if no contestant has two."""
    steps = sorted(step for logs in series for step in _steps(logs))
    if not steps:
        return 0.0
    place = min(len(steps) - 1, math.ceil(KEPT * len(steps)) - 1)
    return steps[place] / (NormalDist().inv_cdf((1.0 + KEPT) / 2.0) * math.sqrt(2.0))


def own_scale(logs: Sequence[float], scale: float) -> float:
    """Return a contestant's own standard deviation, shrunk towards the pooled one, but never below its own estimate.

    Shrunk towards quiet contestants, a noisy one would get too small an error, and the best might be dropped.
    """
    steps = _steps(logs)
    if not steps:
        return scale
    own = median(steps) / (NormalDist().inv_cdf(0.75) * math.sqrt(2.0))
    return max(own, math.sqrt((TRUST * scale**2 + len(steps) * own**2) / (TRUST + len(steps))))


def _steps(logs: Sequence[float]) -> list[float]:
    return [abs(after - before) for before, after in pairwise(logs)]
