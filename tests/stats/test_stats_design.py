"""Orders of a group: every place and every predecessor equally often."""

import subprocess
import sys
from collections import Counter
from itertools import pairwise

import pytest

from attnbench.stats.design import balanced_orders

SIZES = (1, 2, 3, 4, 5, 6, 7, 9, 12)


def block(size):
    return size if size % 2 == 0 or size == 1 else 2 * size


@pytest.mark.parametrize("size", SIZES)
def test_every_round_has_every_subject_once(size):
    orders = balanced_orders(size, 63, seed=1)
    assert len(orders) == 63
    assert all(sorted(order) == list(range(size)) for order in orders)


@pytest.mark.parametrize("size", SIZES)
def test_places_are_equal_after_every_square(size):
    orders = balanced_orders(size, 6 * size, seed=2)
    for rounds in range(size, 6 * size + 1, size):
        places = Counter((place, subject) for order in orders[:rounds] for place, subject in enumerate(order))
        assert set(places.values()) == {rounds // size}
        assert len(places) == size * size


@pytest.mark.parametrize("size", SIZES[1:])
def test_predecessors_are_equal_after_every_block(size):
    orders = balanced_orders(size, 3 * block(size), seed=3)
    for blocks in (1, 2, 3):
        follows = Counter(pair for order in orders[: blocks * block(size)] for pair in pairwise(order))
        assert len(follows) == size * (size - 1)
        assert set(follows.values()) == {blocks * block(size) // size}


@pytest.mark.parametrize("size", SIZES[1:])
def test_a_cut_at_any_round_is_nearly_balanced(size):
    orders = balanced_orders(size, 50, seed=4)
    for rounds in range(1, 51):
        places = Counter((place, subject) for order in orders[:rounds] for place, subject in enumerate(order))
        counts = [places[place, subject] for place in range(size) for subject in range(size)]
        assert max(counts) - min(counts) <= 1


def test_the_seed_decides_and_more_rounds_only_add():
    assert balanced_orders(5, 40, seed=7)[:23] == balanced_orders(5, 23, seed=7)
    assert balanced_orders(5, 40, seed=7) != balanced_orders(5, 40, seed=8)


def test_blocks_do_not_repeat_a_pattern():
    orders = balanced_orders(2, 400, seed=9)
    first = [order[0] for order in orders]
    assert sum(first) == 200
    changes = sum(a != b for a, b in pairwise(first))
    assert 270 <= changes <= 330  # a strict alternation has 399, AABB 200


def test_rows_of_a_square_are_drawn_and_not_dealt_in_turn():
    orders = balanced_orders(6, 600, seed=10)
    steps = [dict(zip(before, after, strict=True)) for before, after in pairwise(orders)]
    assert sum(a == b for a, b in pairwise(steps)) < 0.4 * len(steps)  # dealt in turn: two thirds


def test_nothing_to_order():
    assert balanced_orders(3, 0, seed=0) == []
    for size, rounds in ((0, 3), (2, -1)):
        with pytest.raises(ValueError, match="num_subjects"):
            balanced_orders(size, rounds, seed=0)


def test_the_room_needs_neither_torch_nor_numpy():
    code = (
        "import sys; sys.modules.update(torch=None, triton=None, numpy=None);"
        "import attnbench.stats.design, attnbench.stats.replicates;"
        "from attnbench.stats.stopping import StopRule;"
        "assert StopRule().decide([[1.0] * 53], 0.0) == 'rel-ci'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
