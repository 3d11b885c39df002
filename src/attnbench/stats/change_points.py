"""Detects where a series of runs changed its level, as opposed to drift and noise.

The logarithms of the runs' medians are partitioned into levels by least squares with a penalty for each cut.  The
optimum over all partitions is found exactly (optimal partitioning of Jackson et al., 2005, with the functional
pruning of Maidstone et al., 2017, which leaves a few dozen candidates of thousands).  The penalty is that of BIC for
independent runs, so drift produces cuts too.  These cuts are proposals: `shift_test` keeps those that an
autoregression without them does not explain.

A history is tested after every run.  A test that errs in 1 % of series errs in far more of the histories that are
tested a hundred times.  Its threshold therefore holds for all these tests together, and rises with the number of runs
by 2 log(runs): the probability that a new run looks like a change by chance then falls as one over their number.
`benchmarks/change_points.py` simulates quiet histories and steps; docs/history.md has its table.

*Outliers* are clipped first: a run that lies more than three spreads from the median of the fifteen runs around it
(the spread being what nine in ten keep to) is moved to that distance.  A second mode that occurs often is not an
outlier and stays noise.  In the middle of a series, this removes levels of fewer than eight runs; at its end, where a
regression is news, three or four runs are enough.

Series of fewer than twelve runs are not tested.  For comparison, asv's detector partitions by absolute distances,
weights runs by their intervals and models autoregressive noise too; it follows a path of penalties by heuristics
instead of finding the optimum, and states no rate of false alarms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist
from typing import Any

from attnbench.stats.shift_test import confirmed

FEWEST = 12
"""Fewest runs in which changes are searched: with fewer, their noise is not known well enough."""

PENALTY = 2.0
"""Penalty of a proposed cut, in units of variance times the logarithm of the number of runs."""

SHORTEST = 3
"""Fewest runs of a level."""

LEAST_CHANGE = 0.005
"""Smaller relative changes are not reported however certain: runs differ by as much (`ratio.SAME_WITHIN`)."""

WINDOW = 15
KEPT, REACH = 0.9, 3.0
TRIMMED = 0.03
"""Share of the largest differences between neighbours that is left out of the variance: they contain the changes."""

_EVERY = 64
"""Starts added between two prunings."""


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """The start of a new level."""

    index: int
    "of the first value of the new level"
    before: float
    after: float
    "medians of the levels before and after, in the unit of the values"

    @property
    def ratio(self) -> float:
        """After over before: above 1 is slower if the values are times."""
        return self.after / self.before


def change_points(values: Sequence[float], *, least_change: float = LEAST_CHANGE) -> tuple[ChangePoint, ...]:
    """Find the changes of level in a series.

    Args:
        values: one per run, oldest first; positive and finite.
        least_change: smallest relative change that is reported.

    Returns:
        The changes, oldest first; none for fewer than `FEWEST` values.

    Raises:
        ValueError: a value is not positive and finite.
    """
    import numpy as np

    if not all(0.0 < value < math.inf for value in values):
        raise ValueError("a value is not positive and finite: it has no logarithm")
    if len(values) < FEWEST:
        return ()
    logs = np.log(np.asarray(values, dtype=float))
    calm = _without_outliers(logs)
    # Equal values have no variance, and without a penalty rounding errors would cause cuts.
    penalty = PENALTY * math.log(len(values)) * max(_power(np.diff(calm)), 1e-16)
    cuts = _without_small(logs, confirmed(calm, segment(calm, penalty)), math.log1p(least_change))
    levels = [math.exp(float(np.median(part))) for part in np.split(logs, cuts)]
    return tuple(ChangePoint(cut, *pair) for cut, pair in zip(cuts, pairwise(levels), strict=True))


def segment(values: Any, penalty: float) -> list[int]:
    """Partition a series to minimise the squared distances from the levels' means plus a penalty for each cut.

    Args:
        values: 1-D numpy array.
        penalty: in squared units of the values.

    Returns:
        Indices at which a new level starts; every level has at least `SHORTEST` values.
    """
    import numpy as np

    count = len(values)
    sums = np.concatenate([[0.0], np.cumsum(values - np.median(values))])
    # cost[t]: least cost of the first t values, without their sum of squares, which all partitions share.
    cost: Any = np.full(count + 1, math.inf)
    last: Any = np.zeros(count + 1, dtype=int)
    cost[0] = -penalty
    alive = _Candidates()
    alive.add(0, 1, cost, sums)
    # The next SHORTEST ends are independent of each other, because a level has at least that many values.
    for first in range(SHORTEST, count + 1, SHORTEST):
        ends = slice(first, min(first + SHORTEST, count + 1))
        last[ends], cost[ends] = alive.best(np.arange(ends.start, ends.stop), sums[ends])
        cost[ends] += penalty
        alive.add(first, ends.stop, cost, sums)
    cuts = []
    while count > 0:
        count = int(last[count])
        cuts += [count] if count > 0 else []
    return cuts[::-1]


class _Candidates:
    """Candidate starts of the last level: for each its index, the cost up to it, the sum up to it, and the range of
    means (low, high) for which no later start is cheaper; with an empty range it can never be the best."""

    def __init__(self) -> None:
        import numpy as np

        # Mask of the latest starts (columns) that are too near to the next ends (rows).
        self._too_short: Any = np.triu(np.ones((SHORTEST, SHORTEST), dtype=bool), 1)
        self._rows = np.empty((5, 4 * _EVERY))
        self._count = self._pruned = self._leader = 0

    def add(self, first: int, stop: int, cost: Any, sums: Any) -> None:
        """Add the starts from `first` up to but not including `stop`."""
        import numpy as np

        if self._count - self._pruned >= _EVERY:
            self._prune()
        if self._count + SHORTEST > self._rows.shape[1]:
            self._rows = np.concatenate([self._rows, np.empty_like(self._rows)], axis=1)
        fresh = self._rows[:, self._count : self._count + stop - first]
        fresh[0], fresh[1], fresh[2] = np.arange(first, stop), cost[first:stop], sums[first:stop]
        fresh[3:] = [[-math.inf], [math.inf]]
        self._count += stop - first

    def best(self, ends: Any, totals: Any) -> tuple[Any, Any]:
        """Return for each end (consecutive numbers) the cheapest start of its level, and the cost up to the end."""
        import numpy as np

        starts, costs, sums = self._rows[:3, : self._count]
        rise = totals[:, None] - sums
        rise *= rise
        rise /= starts - ends[:, None]
        rise += costs
        if self._count > SHORTEST:  # the latest starts would make a level too short
            rise[:, -SHORTEST:][self._too_short[: len(ends)]] = math.inf
        places = rise.argmin(axis=1)
        self._leader = int(places[-1])
        return starts[places], rise[np.arange(len(ends)), places]

    def _prune(self) -> None:
        import numpy as np

        rows = self._rows[:, : self._count]
        low, high = self._cheaper(slice(None), slice(self._pruned, self._count))
        np.maximum(rows[3], low.max(axis=1), out=rows[3])
        np.minimum(rows[4], high.min(axis=1), out=rows[4])
        # Also drop a later start if the present best is cheaper for all of its means.
        leader = slice(self._leader, self._leader + 1)
        low, high = self._cheaper(leader, slice(None))
        later = np.arange(self._count) > self._leader
        keep = (rows[3] <= rows[4]) & ~(later & (low[0] <= rows[3]) & (rows[4] <= high[0]))
        self._count = self._pruned = int(keep.sum())
        self._rows[:, : self._count] = rows[:, keep]

    def _cheaper(self, some: slice, others: slice) -> tuple[Any, Any]:
        """Return the means (low, high) for which each start in `some` is cheaper than each later one in `others`.

        The range is unbounded where the other start is not later.
        """
        import numpy as np

        starts, costs, totals = self._rows[:3, : self._count]
        length = starts[None, others] - starts[some, None]
        later = length > 0
        length = np.where(later, length, 1.0)
        centre = (totals[None, others] - totals[some, None]) / length
        square = (costs[None, others] - costs[some, None]) / length + centre**2
        reach = np.sqrt(np.maximum(square, 0.0))
        none = square < -1e-12 * centre**2  # a tie must not remove both
        low, high = np.where(none, math.inf, centre - reach), np.where(none, -math.inf, centre + reach)
        return np.where(later, low, -math.inf), np.where(later, high, math.inf)


def _without_outliers(logs: Any) -> Any:
    """Clip each value to a bounded distance from the median of its neighbours."""
    import numpy as np

    window = min(WINDOW, len(logs) - 1 + len(logs) % 2)
    padded = np.pad(logs, window // 2, mode="symmetric")
    middle = np.median(np.lib.stride_tricks.sliding_window_view(padded, window), axis=1)
    away = logs - middle
    spread = float(np.quantile(np.abs(away), KEPT)) / NormalDist().inv_cdf((1.0 + KEPT) / 2.0)
    return middle + np.clip(away, -REACH * spread, REACH * spread)


def _power(differences: Any) -> float:
    """Return half the mean square of all but the largest differences, for normal noise: the variance of one term."""
    import numpy as np

    squares = np.sort(differences**2)
    count = len(squares)
    left_out = min(max(2, math.ceil(TRIMMED * count)), count // 3)
    share = left_out / count
    bound = NormalDist().inv_cdf(1.0 - share / 2.0)
    kept = 1.0 - 2.0 * bound * NormalDist().pdf(bound) / (1.0 - share)
    return float(squares[: count - left_out].mean()) / kept / 2.0


def _without_small(logs: Any, cuts: list[int], least: float) -> list[int]:
    """Drop changes that are too small to matter, smallest first, joining the levels around them."""
    import numpy as np

    while cuts:
        levels = [float(np.median(part)) for part in np.split(logs, cuts)]
        steps = [abs(after - before) for before, after in pairwise(levels)]
        smallest = min(range(len(cuts)), key=steps.__getitem__)
        if steps[smallest] >= least:
            break
        cuts = [*cuts[:smallest], *cuts[smallest + 1 :]]
    return cuts
