"""A common shift of many values: the Hodges-Lehmann estimate and its exact interval.

The centre is the median of the means of all pairs of values (a value with itself too); the interval contains the
shifts that Wilcoxon's signed-rank test does not reject.  It is valid for every symmetric distribution, including
heavy tails and outliers; the difference of two draws of one distribution is always symmetric.
Source: Hollander and Wolfe, Nonparametric Statistical Methods, 3.1 to 3.3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from statistics import NormalDist

EXACT = 60
"""Largest number of values for which ranks are counted; for more, a normal approximation is used."""

MOST = 1000
"""Largest number of values used; of more, this many are chosen evenly."""


def common_shift(values: Sequence[float], confidence: float) -> tuple[float, tuple[float, float] | None]:
    """Return the centre of the values and its interval.

    Args:
        values: at least one, independent, each symmetric about the shift.
        confidence: of the interval, two-sided.

    Returns:
        The estimate, and the interval; None if so few values cannot reach the confidence.
    """
    import numpy as np

    kept = np.asarray(values, dtype=float)[:: math.ceil(len(values) / MOST)]
    first, second = np.triu_indices(len(kept))
    means = np.sort((kept[first] + kept[second]) / 2.0)
    rank = _rank(len(kept), 1.0 - confidence)
    interval = None if rank is None else (float(means[rank]), float(means[len(means) - 1 - rank]))
    return float(np.median(means)), interval


@cache
def _rank(count: int, alpha: float) -> int | None:
    """Largest rank sum that the test rejects, which is also the index (from 0) of the interval's lower end."""
    if count > EXACT:
        spread = math.sqrt(count * (count + 1) * (2 * count + 1) / 24.0)
        return max(0, math.floor(count * (count + 1) / 4.0 - NormalDist().inv_cdf(1.0 - alpha / 2.0) * spread - 0.5))
    ways = [1]
    for rank in range(1, count + 1):
        ways = [
            (ways[at] if at < len(ways) else 0) + (ways[at - rank] if at >= rank else 0)
            for at in range(len(ways) + rank)
        ]
    total, found = 0, None
    for place, number in enumerate(ways):
        total += number
        if 2 * total > alpha * 2**count:
            break
        found = place
    return found
