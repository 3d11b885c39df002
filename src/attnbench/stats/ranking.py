"""Whether a table has a clear winner, and whether a row is too noisy to be read closely."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from attnbench.stats.ratio import RatioEstimate, paired_ratio
from attnbench.stats.summary import Summary

NOISY_INTERVAL = 0.02
"""Limit of half the width of the median's interval, over the median."""

NOISY_TAIL = 0.10
"""Limit of the distance of the 95th percentile from the median, over the median."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Winner:
    """The subject with the lowest median, and the subjects that cannot be distinguished from it."""

    name: str
    margin: RatioEstimate | None
    "time of the second over the winner's; None for a single subject or no round in common"
    tied: tuple[str, ...]
    "other subjects whose paired interval does not show them slower, fastest first"

    @property
    def is_clear(self) -> bool:
        """Whether the winner is shown to be faster than each other subject."""
        return not self.tied


def clear_winner(group: Mapping[str, Mapping[int, float]], *, tick: float = 0.0) -> Winner | None:
    """Find the fastest subject of a group and compare it with all others within rounds.

    Args:
        group: Time by round of each subject; subjects without samples are skipped.
        tick: Resolution of the timer in the unit of the times.

    Returns:
        None when no subject has a sample.
    """
    medians = {name: median(times.values()) for name, times in group.items() if times}
    if not medians:
        return None
    fastest, *others = sorted(medians, key=lambda name: medians[name])
    margins = {
        name: paired_ratio(group[name], group[fastest], tick=tick) if group[name].keys() & group[fastest] else None
        for name in others
    }
    tied = tuple(name for name, margin in margins.items() if margin is None or margin.verdict != "faster")
    return Winner(name=fastest, margin=margins[others[0]] if others else None, tied=tied)


def is_noisy(summary: Summary) -> bool:
    """Return whether the median is known to worse than 2 %, or one sample in twenty is over 10 % above it.

    A stream too short for an interval (below six samples) is judged only by its tail.
    """
    if summary.ci_low is not None and summary.ci_high is not None:
        half = (summary.ci_high - summary.ci_low) / 2.0
        if half > NOISY_INTERVAL * summary.median:
            return True
    return summary.p95 - summary.median > NOISY_TAIL * summary.median
