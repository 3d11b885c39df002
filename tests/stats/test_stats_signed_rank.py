"""The shift that many values share, against counting and against streams with a known shift."""

from __future__ import annotations

import itertools
import math
import random
from statistics import NormalDist, median

import pytest

from attnbench.stats.signed_rank import EXACT, MOST, _rank, common_shift


def test_the_centre_is_the_median_of_the_means_of_pairs():
    values = [0.1, 0.4, -0.2, 0.9]
    pairs = [(a + b) / 2 for a, b in itertools.combinations_with_replacement(values, 2)]
    assert common_shift(values, 0.5)[0] == pytest.approx(median(pairs))


@pytest.mark.parametrize("count", [6, 9, 12])
def test_ranks_are_those_of_counting(count):
    sums = sorted(
        sum(rank for rank, sign in zip(range(1, count + 1), signs, strict=True) if sign)
        for signs in itertools.product((False, True), repeat=count)
    )
    for alpha in (0.05, 0.01, 0.002):
        rank = _rank(count, alpha)
        if rank is None:
            assert alpha * 2**count < 2
        else:
            assert 2 * sum(one <= rank for one in sums) <= alpha * len(sums) < 2 * sum(one <= rank + 1 for one in sums)


def test_few_values_reach_no_such_confidence():
    assert common_shift([1.0, 1.1, 0.9, 1.0], 0.95)[1] is None
    centre, interval = common_shift([1.0, 1.1, 0.9, 1.0, 1.2, 0.8], 0.95)
    assert interval == (0.8, 1.2), "all there is"
    assert centre == pytest.approx(1.0)


def test_counted_and_normal_ranks_meet():
    assert abs(_rank(EXACT, 0.01) - _rank(EXACT + 1, 0.01)) < 25


def draw(kind, lots):
    if kind == "outliers":
        return lots.gauss(0.0, 0.002) + sum(sign * (lots.random() < 0.05) for sign in (0.03, -0.03))
    if kind == "t3":
        return lots.gauss(0.0, 1.0) / (sum(lots.gauss(0.0, 1.0) ** 2 for _ in range(3)) / 3.0) ** 0.5
    return lots.gauss(0.0, 1.0)


@pytest.mark.parametrize("kind", ["normal", "t3", "outliers"])
def test_the_interval_holds_the_truth_whatever_the_tails(kind):
    lots, held = random.Random(f"signed rank {kind}"), 0
    for _ in range(400):
        low, high = common_shift([draw(kind, lots) for _ in range(12)], 0.95)[1]
        held += low <= 0.0 <= high
    assert held >= 365, "at 95 %, fewer come in one of 1,000 seeds"


def test_of_very_many_a_spread_of_them_is_looked_at():
    values = [1.0 + 1e-3 * (index % 7) for index in range(20 * MOST)]
    centre, (low, high) = common_shift(values, 0.99)
    assert low <= centre <= high
    assert centre == pytest.approx(1.003, abs=5e-4)


def test_the_normal_rank_is_on_average_half_a_step_below_that_of_counting():
    ways, apart = [1], []
    for count in range(1, EXACT + 13):
        ways = [
            (ways[at] if at < len(ways) else 0) + (ways[at - count] if at >= count else 0)
            for at in range(len(ways) + count)
        ]
        if count > EXACT:
            below = list(itertools.accumulate(ways[: _rank(count, 0.05) + 10]))
            counted = max(rank for rank, number in enumerate(below) if 2 * number <= 0.05 * 2**count)
            apart.append(_rank(count, 0.05) - counted)
    assert set(apart) == {0, -1}
    assert -0.7 < sum(apart) / len(apart) < -0.3


def test_many_values_have_the_normal_rank():
    spread = math.sqrt(61 * 62 * 123 / 24)
    assert _rank(61, 0.01) == math.floor(61 * 62 / 4 - NormalDist().inv_cdf(0.995) * spread - 0.5) == 586
    assert _rank(61, 1e-15) == 0, "all there is"
    assert [_rank(count, 0.05) for count in (10, 25, 50)] == [8, 89, 434], "tables of the signed-rank test"


def test_ends_are_means_of_pairs_counted_from_either_side():
    values = [0.0, 1.0, 10.0, 100.0, 1000.0, 10_000.0, 100_000.0]
    pairs = sorted((a + b) / 2 for a, b in itertools.combinations_with_replacement(values, 2))
    rank = _rank(7, 0.1)
    assert rank == 3
    assert common_shift(values, 0.9)[1] == (pairs[3], pairs[-4])


def test_of_more_than_a_thousand_every_second_is_looked_at():
    values = [float(index) for index in range(MOST + 2)]
    assert common_shift(values, 0.95)[0] == MOST / 2, "the even ones"
    assert common_shift(values[:MOST], 0.95)[0] == (MOST - 1) / 2, "all"
