"""Combines the ratios of several new processes into one.

Samples of one process share its memory layout, its allocator and its compiled code, so a hundred of
them do not represent a hundred processes.  Here each process counts once: the estimate is the mean
of the log ratios, the interval is Student's over processes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

from attnbench.stats.ratio import SAME_WITHIN, RatioEstimate, factor, judge


def combine_replicates(estimates: Sequence[RatioEstimate], *, same_within: float = SAME_WITHIN) -> RatioEstimate:
    """Combine the ratios of one pair of subjects, one estimate per process.

    Returns:
        The geometric mean with its 95 % interval over processes; `num_pairs` is the sum.  For a
        single process the interval between processes is unknown: None, and "unclear".

    Raises:
        ValueError: there is no estimate.
    """
    if not estimates:
        raise ValueError("no replicate to combine")
    logs = [math.log(estimate.ratio) for estimate in estimates]
    count = len(logs)
    centre = math.fsum(logs) / count
    low = high = None
    if count > 1:
        spread = math.sqrt(math.fsum((log - centre) ** 2 for log in logs) / (count - 1))
        half = student_quantile(0.975, count - 1) * spread / math.sqrt(count)
        low, high = centre - half, centre + half
    return RatioEstimate(
        ratio=factor(centre),
        ci_low=None if low is None else factor(low),
        ci_high=None if high is None else factor(high),
        num_pairs=sum(estimate.num_pairs for estimate in estimates),
        verdict=judge(low, high, same_within),
    )


@cache
def student_quantile(share: float, degrees: int) -> float:
    """Quantile of Student's t for integer degrees of freedom, by bisection of its closed-form distribution.

    Source: Abramowitz and Stegun, 26.7.3 and 26.7.4.

    Args:
        share: Probability below the quantile, from 0.5 up to but not including 1.
        degrees: Degrees of freedom, at least 1.
    """
    low, high = 0.0, 1.0
    while _student_share(high, degrees) < share:
        high *= 2.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if _student_share(middle, degrees) < share else (low, middle)
    return (low + high) / 2.0


def _student_share(value: float, degrees: int) -> float:
    angle = math.atan(value / math.sqrt(degrees))
    cosine2 = math.cos(angle) ** 2
    odd = degrees % 2
    term = total = 1.0
    for step in range(1 + odd, degrees - 2 + odd, 2):
        term *= cosine2 * step / (step + 1)
        total += term
    if not odd:
        return 0.5 + math.sin(angle) * total / 2.0
    wave = math.sin(angle) * math.cos(angle) * total if degrees > 1 else 0.0
    return 0.5 + (angle + wave) / math.pi
