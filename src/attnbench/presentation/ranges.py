"""Values derived from several medians, each with the range that the 95 % intervals of these medians allow.

A range is computed with every median at an end of its interval.  So to first order it is at least as wide as the 95 %
interval of the derived value.  It is unknown if one of the intervals is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from attnbench.presentation import figures
from attnbench.record import Speedup, Time
from attnbench.stats.summary import is_wild


@dataclass(frozen=True, slots=True)
class Range:
    """A value and the ends of its range; None where an interval is unknown, infinite where a divisor may be 0."""

    value: float
    low: float | None = None
    high: float | None = None

    def times(self, factor: float) -> Range:
        """Multiply by a number above 0."""
        return Range(self.value * factor, *(None if end is None else end * factor for end in (self.low, self.high)))

    def plus(self, other: Range) -> Range:
        """Add another value."""
        return Range(self.value + other.value, _sum(self.low, other.low), _sum(self.high, other.high))

    def minus(self, other: Range) -> Range:
        """Subtract another value."""
        opposite = Range(-other.value, *(None if end is None else -end for end in (other.high, other.low)))
        return self.plus(opposite)

    def over(self, other: Range) -> Range:
        """Divide by another value, which is above 0."""
        low = None if self.low is None or other.high is None else self.low / other.high
        high = None if self.high is None or other.low is None else self.high / other.low if other.low > 0 else math.inf
        return Range(self.value / other.value, low, high)

    @property
    def half(self) -> float | None:
        """The longer arm of the range; None if it is unknown."""
        return figures.half_interval(self.value, self.low, self.high)

    @property
    def is_known(self) -> bool:
        """Whether there is a range and it is not wider than the value."""
        return self.half is not None and not self.is_wild

    @property
    def is_wild(self) -> bool:
        """Whether the range is wider than the value."""
        return is_wild(self.value, self.low, self.high)


def range_of(time: Time) -> Range | None:
    """Return a time's median in ms with its interval; None if there is no median."""
    return None if time.median_ms is None else Range(time.median_ms, time.ci_low_ms, time.ci_high_ms)


def ratio_of(speedup: Speedup) -> Range:
    """Return a speed-up with its interval."""
    return Range(speedup.ratio, speedup.ci_low, speedup.ci_high)


def added(ranges: Iterable[Range]) -> Range:
    """Return the sum; that of nothing is 0."""
    total = Range(0.0, 0.0, 0.0)
    for one in ranges:
        total = total.plus(one)
    return total


def limit(attention: Range, rest: Range) -> Range:
    """Return the speed-up of a step if its attention took no time (Amdahl); the rest of the step is above 0."""
    return Range(1.0, 1.0, 1.0).plus(attention.over(rest))


def limit_cells(limit: Range | None) -> dict[str, str]:
    """Return the texts of the columns `limit` and `limit_margin`."""
    if limit is None:
        return {}
    shown, margin = figures.factor(limit.value, limit.low, limit.high)
    return {"limit": shown, "limit_margin": margin}


def _sum(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first + second
