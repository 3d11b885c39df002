"""The spread between processes of the same code, learned from a whole grid, and simultaneous intervals.

Two or three processes per side say little about the spread of one row, but a grid has hundreds of rows.
Each row's spread, as a multiple of what its samples and the declared floor predict, is shrunk towards
that of the grid: the more alike the rows are, the more.  This is the moderated variance of Smyth (Linear
models and empirical Bayes methods for assessing differential expression, 2004), with the floor in
place of an unknown scale.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

from attnbench.stats.replicates import student_quantile

MOST_DEGREES = 400
"""Beyond this many degrees, Student's t is approximated by that with 400."""

_SMALLEST = 1e-4
"""Least multiple whose logarithm is used: timers round, so equal values do not prove that there is no spread."""

KEPT = 0.75
"""Share of draws that the robust scale is computed from."""

KEPT_DEGREES = 0.55
"""Degrees of freedom of that scale, as a share of all draws: 0.50 to 0.57 in simulations of 20 to 200 draws."""


def prior_of(multiples: Sequence[float], degrees: Sequence[int]) -> tuple[float, float]:
    """Return scale and degrees of freedom of the distribution that the rows' multiples come from.

    Args:
        multiples: Measured over predicted variance, one per row.
        degrees: Degrees of freedom of each, at least 1.

    Returns:
        The scale, and its degrees: few if rows differ by more than chance, at most those of all rows.
        (1.0, 4.0), the declared floor, for fewer than three rows.
    """
    if len(multiples) < 3:
        return 1.0, 4.0
    logs = [
        math.log(max(multiple, _SMALLEST)) - digamma(degree / 2.0) + math.log(degree / 2.0)
        for multiple, degree in zip(multiples, degrees, strict=True)
    ]
    centre = math.fsum(logs) / len(logs)
    spread = math.fsum((log - centre) ** 2 for log in logs) / (len(logs) - 1)
    beyond = spread - math.fsum(trigamma(degree / 2.0) for degree in degrees) / len(degrees)
    most = float(sum(degrees))
    if beyond <= trigamma(most / 2.0):
        pooled = math.fsum(degree * multiple for multiple, degree in zip(multiples, degrees, strict=True)) / most
        return max(pooled, _SMALLEST), most
    freedom = 2.0 * _inverse_trigamma(beyond)
    return math.exp(centre + digamma(freedom / 2.0) - math.log(freedom / 2.0)), freedom


def trimmed_scale(squares: Sequence[float]) -> float:
    """Return the mean square of draws from a normal distribution around 0, from the smallest three quarters of them.

    One draw in four may be arbitrary: a reference that did change does not hide changes of the others.
    """
    ordered = sorted(squares)[: max(1, math.ceil(KEPT * len(squares)))]
    share = len(ordered) / len(squares)
    mean = math.fsum(ordered) / len(ordered)
    if share == 1.0:
        return mean
    normal = NormalDist()
    edge = normal.inv_cdf((1.0 + share) / 2.0)
    return mean / (1.0 - 2.0 * edge * normal.pdf(edge) / share)


def each(confidence: float, rows: int) -> float:
    """Return the confidence of each of `rows` intervals such that all hold simultaneously with `confidence`.

    Sidak's inequality: exact for independent rows, conservative for rows that share a reference.
    """
    return confidence ** (1.0 / max(1, rows))


def quantile(share: float, degrees: float) -> float:
    """Quantile of Student's t; its degrees are rounded down to an integer from 1 to 400."""
    return student_quantile(share, int(min(MOST_DEGREES, max(1.0, degrees))))


def digamma(value: float) -> float:
    """Derivative of log gamma, for a positive value."""
    total = 0.0
    while value < 6.0:
        total -= 1.0 / value
        value += 1.0
    inverse = 1.0 / value**2
    return total + math.log(value) - 0.5 / value - inverse * (1 / 12 - inverse * (1 / 120 - inverse / 252))


def trigamma(value: float) -> float:
    """Derivative of `digamma`, for a positive value."""
    total = 0.0
    while value < 6.0:
        total += 1.0 / value**2
        value += 1.0
    inverse = 1.0 / value**2
    return total + 1.0 / value + inverse / 2 + inverse / value * (1 / 6 - inverse * (1 / 30 - inverse / 42))


def _inverse_trigamma(wanted: float) -> float:
    low, high = 1e-6, 1e9
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if trigamma(middle) > wanted else (low, middle)
    return math.sqrt(low * high)
