"""A test whether one series is larger than another, where pauses of the machine may lengthen both."""

from __future__ import annotations

import math
from collections.abc import Sequence


def chance_of_lead(larger: Sequence[float], smaller: Sequence[float]) -> float:
    """Return the probability that as many of `smaller` lie below all of `larger` if all values had one distribution.

    Exact for independent values, whatever the distribution: of the orders of n + m values, those that
    start with k of the m are C(n + m - k, n) of C(n + m, n).  Pauses of a loaded machine lengthen some
    values of both series and leave the smallest unchanged, which is why only the smallest count.

    Args:
        larger: some values.
        smaller: others.
    """
    least = min(larger)
    lead = sum(value < least for value in smaller)
    count = len(larger) + len(smaller)
    return math.comb(count - lead, len(larger)) / math.comb(count, len(larger))
