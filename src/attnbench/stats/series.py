"""Levels of many series at once: `summary` and `ratio` for the thousands of series of a diff.

A series is a row of a matrix; rounds in which it has no sample are NaN.  The centre is the median, or, if
the timer is coarse, the ramped centre of `ratio`.  Its error comes from the exact interval by order
statistics, widened for serial dependence as in `dependence`.  The only difference is that numpy
processes all series together.
"""

from __future__ import annotations

import math
from typing import Any

from attnbench.stats.dependence import GATE, LEAST_SHARE, STRONGEST, autoregression
from attnbench.stats.summary import FEWEST_FOR_INTERVAL, order_rank

HALVINGS = 44
TWO_SIDED = 1.959964
"""Standard errors from the middle to an end of a 95 % interval."""


def medians(series: Any) -> Any:
    """Return the median of each row of a float matrix, ignoring NaN; NaN if a row has nothing else."""
    import numpy as np

    ordered = np.sort(series, axis=1)
    counts = np.isfinite(series).sum(axis=1)
    rows, last = np.arange(len(series)), series.shape[1] - 1
    low, high = (np.clip(place, 0, last) for place in ((counts - 1) // 2, counts // 2))
    return np.where(counts > 0, (ordered[rows, low] + ordered[rows, high]) / 2.0, math.nan)


def centres(series: Any, corners: Any) -> tuple[Any, Any]:
    """Return the centre of each row and its standard error from the samples alone.

    Args:
        series: Logarithms of times, in the order of measuring; NaN where a round has no sample.
        corners: Half width of the timer's ramp for each row, as a difference of logarithms; 0 for none.

    Returns:
        Two vectors.  The error is half the range for two to five samples, and NaN for one.
    """
    import numpy as np

    ordered = np.sort(series, axis=1)
    counts = np.isfinite(series).sum(axis=1)
    middle = medians(series)
    ranks = _ranks(counts)
    rows = np.arange(len(series))
    low, high = (ordered[rows, np.clip(place, 0, series.shape[1] - 1)] for place in (ranks - 1, counts - ranks))
    # The error is scaled, not taken from outer order statistics: outliers there say nothing about the median.
    inflations = np.sqrt(variance_inflations(series))
    errors = np.where(counts >= FEWEST_FOR_INTERVAL, (high - low) / (2.0 * TWO_SIDED) * inflations, (high - low) / 2.0)
    errors[counts < 2] = math.nan
    coarse = corners > 1e-6 * (ordered[rows, np.maximum(counts - 1, 0)] - ordered[:, 0])
    if coarse.any():
        middle, errors = middle.copy(), errors.copy()
        middle[coarse] = _ramped(series[coarse], corners[coarse])
        # Equal samples leave an uncertainty of a share of a tick, not zero (`ratio`).
        doubt = corners[coarse] * math.sqrt(2.0) / np.maximum(counts[coarse], 1)
        errors[coarse] = np.hypot(errors[coarse], doubt)
    return middle, errors


def variance_inflations(series: Any) -> Any:
    """`dependence.variance_inflation` of every row; a missing sample counts as equal to the median."""
    import numpy as np

    there = np.isfinite(series)
    counts = np.maximum(there.sum(axis=1), 1)
    ranks = _centred_ranks(np.where(there, series, math.nan), counts)
    width = series.shape[1]
    size = 1 << (2 * width - 1).bit_length()
    spectrum = np.fft.rfft(ranks, size)
    products = np.fft.irfft(spectrum * spectrum.conj(), size)[:, :width]
    power = products[:, 0]
    known = (power > 1e-9) & (counts >= 4)
    power = np.where(known, power, 1.0)
    lags = np.arange(width)
    pairs_left = np.maximum(counts[:, None] - lags, 1)
    found = products / pairs_left / (power / counts)[:, None] + 1.0 / counts[:, None]
    correlation = np.where(lags < counts[:, None], found, 0.0)
    return np.where(known, _inflation(correlation, counts), 1.0)


def _centred_ranks(series: Any, counts: Any) -> Any:
    """Ranks of each row minus their mean; equal samples share one rank, a missing sample has 0."""
    import numpy as np

    order = np.argsort(series, axis=1)
    ordered = np.take_along_axis(series, order, axis=1)
    places = np.arange(series.shape[1])
    fresh = np.diff(ordered, axis=1) != 0.0
    edge: Any = np.ones((len(series), 1), dtype=bool)
    first = np.maximum.accumulate(np.where(np.hstack([edge, fresh]), places, 0), axis=1)
    last = np.where(np.hstack([fresh, edge]), places, series.shape[1])
    last = np.minimum.accumulate(last[:, ::-1], axis=1)[:, ::-1]
    ranks = np.empty_like(series)
    np.put_along_axis(ranks, order, (first + last - (counts - 1)[:, None]) / 2.0, axis=1)
    return np.where(np.isfinite(series), ranks, 0.0)


def _inflation(correlation: Any, counts: Any) -> Any:
    """The larger of Geyer's initial monotone sums of pairs and of an autoregression of first order."""
    import numpy as np

    width = correlation.shape[1]
    first = correlation[:, 1] if width > 1 else np.zeros(len(correlation))
    signs = 2.0 / math.pi * np.arcsin(np.clip(correlation, -1.0, 1.0))
    total = 1.0 + (signs[:, 1] if width > 1 else 0.0) + np.zeros(len(correlation))
    even = np.arange(2, max(2, width // 2), 2)
    if len(even):
        pairs = signs[:, even] + signs[:, even + 1]
        pairs = np.where(even < (counts // 2)[:, None], pairs, 0.0)
        pairs = np.minimum.accumulate(np.minimum(pairs, total[:, None]), axis=1)
        total = total + np.maximum(pairs, 0.0).sum(axis=1)
    summed = 2.0 * total - 1.0
    summed = summed / np.maximum(LEAST_SHARE, 1.0 - summed / counts)
    alike = np.clip(counts * first / np.maximum(counts - 4, 4), 0.0, STRONGEST)
    regressed = np.array([autoregression(one) for one in np.round(alike, 3).tolist()])
    return np.where(first <= GATE / np.sqrt(counts), 1.0, np.maximum(1.0, np.maximum(summed, regressed)))


def _ranks(counts: Any) -> Any:
    """Return the rank, from 1, of the lower end of the 95 % interval of each row's median."""
    import numpy as np

    sizes, places = np.unique(counts, return_inverse=True)
    return np.array([max(1, order_rank(int(size))) for size in sizes])[places]


def _ramped(series: Any, corners: Any) -> Any:
    """Return the zero of sum(clip((value - centre) / corner, -1, 1)), for each row."""
    import numpy as np

    low, high = np.nanmin(series, axis=1) - corners, np.nanmax(series, axis=1) + corners
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        total = np.nansum(np.clip((series - middle[:, None]) / corners[:, None], -1.0, 1.0), axis=1)
        low, high = np.where(total > 0.0, middle, low), np.where(total > 0.0, high, middle)
    return (low + high) / 2.0
