"""Formatting of values: with as many digits as the interval supports, and one unit per table."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from attnbench.record import Speedup, Time
from attnbench.stats.summary import is_wild

UNKNOWN_DIGITS = 3
"Significant digits of a value whose interval is unknown."
STEADY_DIGITS = 4
"Significant digits if the interval is narrower than the timer's tick."


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of time: ``value_ms * per_ms`` is the value in it."""

    name: str
    per_ms: float

    def of(self, time_ms: float | None) -> float | None:
        """Return a time in this unit; None if it is unknown."""
        return None if time_ms is None else time_ms * self.per_ms


MICROSECONDS, MILLISECONDS, SECONDS = Unit("µs", 1e3), Unit("ms", 1.0), Unit("s", 1e-3)


def unit_for(times_ms: Iterable[float]) -> Unit:
    """Return the unit of a column: that of its smallest time, which must keep its digits."""
    smallest = min(times_ms, default=1.0)
    if smallest < 0.5:
        return MICROSECONDS
    return MILLISECONDS if smallest < 1000 else SECONDS


def half_interval(value: float | None, low: float | None, high: float | None) -> float | None:
    """Return the longer arm of an interval around `value`: intervals of order statistics are not symmetric."""
    if value is None or low is None or high is None:
        return None
    return max(value - low, high - value, 0.0)


def typical_ms(time: Time | None) -> float | None:
    """The median, or the mean of a time of which another program's file says no more; None if neither is known."""
    if time is None:
        return None
    return time.mean_ms if time.median_ms is None else time.median_ms


def time_half(time: Time) -> float | None:
    """Half interval of a median, in milliseconds."""
    return half_interval(time.median_ms, time.ci_low_ms, time.ci_high_ms)


def time_relative(time: Time) -> float | None:
    """Half interval of a median as a share of it."""
    half = time_half(time)
    return half / time.median_ms if half is not None and time.median_ms else None


def speedup_half(speedup: Speedup) -> float | None:
    """Half interval of a speed-up."""
    return half_interval(speedup.ratio, speedup.ci_low, speedup.ci_high)


def wild_time(time: Time) -> bool:
    """Return whether the interval of a median is wider than the median."""
    return is_wild(time.median_ms, time.ci_low_ms, time.ci_high_ms)


def interval(time: Time, unit: Unit) -> str:
    """Format the half interval of a median, ``±0.014``; if it is wider than the median, both ends: ``30 to 12200``."""
    low, value, high = (unit.of(one) for one in (time.ci_low_ms, time.median_ms, time.ci_high_ms))
    if wild_time(time):
        return f"{plain(low, 2)} to {plain(high, 2)}"
    return margin(value, half_interval(value, low, high))


def ratio(speedup: Speedup) -> tuple[str, str]:
    """Format a speed-up and its half interval, as `factor` does."""
    return factor(speedup.ratio, speedup.ci_low, speedup.ci_high)


def factor(value: float, low: float | None, high: float | None) -> tuple[str, str]:
    """Format a ratio and its half interval: ``2.30x``, ``±0.01``.

    For an interval wider than the ratio the result has both ends, ``0.2x to 9x``; also if the longer arm would
    reach across 1, as in ``1.2x ±0.6`` beside "faster".  Without a highest end it is ``over 3x``.
    """
    half = half_interval(value, low, high)
    if is_wild(value, low, high):
        return f"over {plain(low, 2)}x" if high == math.inf else f"{plain(low, 2)}x to {plain(high, 2)}x", ""
    if half is not None and low is not None and high is not None:
        across = low > 1.0 > value - half or high < 1.0 < value + half
        if across:
            return f"{plain(low)}x to {plain(high)}x", ""
    return f"{measured(value, half)}x", margin(value, half)


def short_factor(value: float, half: float | None = None) -> str:
    """Format a ratio inside a sentence: with two decimals, or fewer if the interval supports no more."""
    return min(f"{value:.2f}", measured(value, half), key=len)


def measured(value: float | None, half: float | None) -> str:
    """Format `value` with as many decimals as its half interval has significant digits; "" for None."""
    return "" if value is None else f"{value:.{_decimals(value, half)}f}"


def margin(value: float | None, half: float | None) -> str:
    """Format the half interval beside `measured`, with the same decimals: ``±0.014``; "" if it is unknown."""
    return "" if value is None or half is None else f"±{half:.{_decimals(value, half)}f}"


def spread(value: float | None, breadth: float | None) -> str:
    """Format the spread of several measurements, with the decimals of ``measured(value, breadth)``; "" for None."""
    return "" if value is None or breadth is None else f"{breadth:.{_decimals(value, breadth)}f}"


def plain(value: float | None, digits: int = UNKNOWN_DIGITS) -> str:
    """Format `value` with this many significant digits, never with an exponent; "" for None."""
    return "" if value is None else f"{value:.{_places(value, digits)}f}"


def _decimals(value: float, half: float | None) -> int:
    if half is None:
        return _places(value, UNKNOWN_DIGITS)
    if half <= 0.0:
        return _places(value, STEADY_DIGITS)
    if not math.isfinite(half):
        return 0
    exponent = math.floor(math.log10(half))
    # Two digits for leading digits below 3 keep the rounding error of the interval below a sixth of it.  A value
    # whose interval is wider than the value still has two digits, because it would otherwise vanish.
    return max(_places(value, 2), -exponent + (half / 10.0**exponent < 3.0), 0)


def _places(value: float, digits: int) -> int:
    # A time of a damaged history may be near the largest number, and infinite in another unit.
    return 0 if value == 0.0 or not math.isfinite(value) else max(0, digits - 1 - math.floor(math.log10(abs(value))))


def size(count: int) -> str:
    """Return a number of bytes in the unit that leaves one to three digits before the point: ``34.6 kB``."""
    value, unit = float(count), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 999.5:
            break
        value, unit = value / 1e3, larger
    return f"{value:.3g} {unit}"
