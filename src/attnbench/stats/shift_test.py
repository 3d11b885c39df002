"""Which proposed changes of level are more than the noise of a series, however often it is looked at.

The noise may be a first-order autoregression: neighbours resemble each other where a card, a clock or a
building drifts.  A change is held against the best autoregression without it.  Its statistic is twice the
gain in log likelihood, the strength of the autoregression being free on both sides: a slow drift is then
explained without a change, while a step, which an autoregression would have to forget again, is not.

Changes are taken up one by one, the largest first, with two neighbours at once where a level came and went.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

STRENGTHS = (0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.94, 0.97)
"""Correlations of neighbours that are tried."""

THRESHOLD = 16.0
"""Of a single change, beside twice the logarithm of the number of runs."""

SECOND = 9.0
"""More, of two at once."""

VISIT = 8
"""Runs that a level has that came and went: what is shorter is taken for outliers (`change_points.WINDOW`)."""

_LEAST = 1e-16
"""Variance: equal values have none, and the last digit of rounding is no change."""


def threshold(count: int) -> float:
    """Statistic above which one change is reported; a series is looked at after every run that is added."""
    return THRESHOLD + 2.0 * math.log(count)


def confirmed(values: Any, proposals: Sequence[int]) -> list[int]:
    """The proposals that hold.

    Args:
        values: 1-D numpy array.
        proposals: Indices at which a new level may begin, increasing, from 1 on.
    """
    import numpy as np

    taken: list[int] = []
    left = list(proposals)
    while left:
        one, two = statistics(values, taken, left)
        one, two = one - threshold(len(values)), two - threshold(len(values)) - SECOND
        two = np.where(np.diff(np.asarray(left)) >= VISIT, two, -math.inf)
        if max(one.max(), two.max(initial=-math.inf)) <= 0.0:
            break
        place = int(one.argmax())
        best = [left[place]]
        if two.max(initial=-math.inf) > one[place]:
            place = int(two.argmax())
            best = left[place : place + 2]
        taken = sorted([*taken, *best])
        left = [index for index in left if index not in best]
    return taken


def statistics(values: Any, taken: Sequence[int], left: Sequence[int]) -> tuple[Any, Any]:
    """What each further change would gain beside those taken.

    Returns:
        Twice the gain in log likelihood of each of `left`, and of each two neighbours of them.
    """
    import numpy as np

    count = len(values)
    without, single, double = -math.inf, np.full(len(left), -math.inf), np.full(len(left) - 1, -math.inf)
    for strength in STRENGTHS:
        rest, one, two = _squares(values, taken, np.asarray(left), strength)

        def likelihood(squares: Any, strength: float = strength) -> Any:
            return math.log(1.0 - strength**2) - count * np.log(np.maximum(squares, count * _LEAST))

        without = max(without, float(likelihood(rest)))
        single, double = np.maximum(single, likelihood(one)), np.maximum(double, likelihood(two))
    few = (count - len(taken) - 3) / count  # the likelihood's variance is too small by the parameters fitted
    return few * (single - without), few * (double - without)


def _squares(values: Any, taken: Sequence[int], left: Any, strength: float) -> tuple[Any, Any, Any]:
    """Sums of squares that an autoregression of this strength leaves: without, with one, with two more changes.

    What neighbours share is taken out of the values and of the steps alike: of a step there remain 1 where
    it is and 1 - strength after it, so that its products with anything are sums over the rest of the series.
    """
    import numpy as np

    count, after = len(values), 1.0 - strength
    places: Any = np.arange(count)
    steps = places[:, None] >= np.array([0, *taken])
    both = np.column_stack([values - values.mean(), steps])
    white = np.vstack([math.sqrt(1.0 - strength**2) * both[:1], both[1:] - strength * both[:-1]])
    basis = np.linalg.qr(white[:, 1:])[0]
    rest = white[:, 0] - basis @ (basis.T @ white[:, 0])
    columns = np.column_stack([rest, basis])
    sums = np.vstack([columns[::-1].cumsum(axis=0)[::-1], np.zeros(columns.shape[1])])
    products = columns[left] + after * sums[left + 1]
    gain, inside = products[:, 0], products[:, 1:]
    power = 1.0 + after**2 * (count - left - 1) - (inside**2).sum(axis=1)
    shared = after + after**2 * (count - left[1:] - 1) - (inside[1:] * inside[:-1]).sum(axis=1)
    total = float(rest @ rest)
    area = np.maximum(power[1:] * power[:-1] - shared**2, 1e-12)
    two = (gain[:-1] ** 2 * power[1:] - 2.0 * gain[:-1] * gain[1:] * shared + gain[1:] ** 2 * power[:-1]) / area
    return total, total - gain**2 / np.maximum(power, 1e-12), total - two
