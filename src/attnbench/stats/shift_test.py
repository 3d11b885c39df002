"""Tests which proposed changes of level exceed the noise of a series that is tested repeatedly.

The noise may be a first-order autoregression: neighbours are similar when a card, a clock or a
building drifts.  A change is compared with the best autoregression without it.  Its statistic is twice the
gain in log likelihood, with the strength of the autoregression fitted on both sides: a slow drift is then
explained without a change, while a step, which an autoregression would have to decay from, is not.

Changes are accepted one by one, the largest first, and two neighbours at once where a level came and went.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

STRENGTHS = (0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.94, 0.97)
"""Correlations of neighbours that are tried."""

THRESHOLD = 16.0
"""Threshold for a single change, in addition to twice the logarithm of the number of runs."""

SECOND = 9.0
"""Additional threshold for two changes at once."""

VISIT = 8
"""Fewest runs of a level that came and went: shorter ones are treated as outliers (`change_points.WINDOW`)."""

_LEAST = 1e-16
"""Least variance: equal values have none, and a rounding error is no change."""


def threshold(count: int) -> float:
    """Statistic above which one change is reported; accounts for a test after every run that is added."""
    return THRESHOLD + 2.0 * math.log(count)


def confirmed(values: Any, proposals: Sequence[int]) -> list[int]:
    """Return the proposals that are confirmed.

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
    """Compute what each further change would gain beside those accepted.

    Returns:
        Twice the gain in log likelihood of each of `left`, and of each pair of neighbours among them.
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
    few = (count - len(taken) - 3) / count  # corrects the likelihood's variance for the parameters fitted
    return few * (single - without), few * (double - without)


def _squares(values: Any, taken: Sequence[int], left: Any, strength: float) -> tuple[Any, Any, Any]:
    """Return the residual sums of squares of an autoregression of this strength with none, one and two more changes.

    Autoregression is removed from the values and from the steps alike: of a step there remain 1 where
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
