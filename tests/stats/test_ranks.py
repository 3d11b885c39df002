"""The test of the lead: exact by enumeration, at its nominal rate with ties, robust to pauses."""

from __future__ import annotations

import itertools
import random

import pytest

from attnbench.stats.ranks import chance_of_lead


@pytest.mark.parametrize(("first", "second"), [(1, 1), (2, 3), (4, 4), (3, 5)])
def test_it_is_the_share_of_all_orders(first, second):
    values = range(first + second)
    orders = list(itertools.combinations(values, first))
    for chosen in orders:
        share = sum(min(other) >= min(chosen) for other in orders) / len(orders)
        assert chance_of_lead(chosen, [v for v in values if v not in chosen]) == pytest.approx(share)


def test_ties_are_no_lead():
    assert chance_of_lead([1.0] * 5, [1.0] * 5) == 1.0


def test_pauses_of_a_loaded_machine_are_no_difference_and_hide_none():
    lots = random.Random(5)

    def drawn(level):
        return [lots.gauss(level, 0.05) + (lots.expovariate(0.1) if lots.random() < 0.3 else 0) for _ in range(24)]

    chances = [chance_of_lead(drawn(1), drawn(1)) for _ in range(4000)]
    assert sum(chance < 0.01 for chance in chances) <= 60  # 40 expected at most; 60 is three deviations above
    assert max(chance_of_lead(drawn(2), drawn(1)) for _ in range(100)) < 1e-3
