"""The winner of a table, and noisy rows."""

import dataclasses
import random
import subprocess
import sys

import pytest

from attnbench.stats.ranking import clear_winner, is_noisy
from attnbench.stats.summary import summarise


def group(**levels):
    lots = random.Random(3)
    shared = [lots.gauss(1, 0.05) for _ in range(40)]
    return {name: {index: level * clock * lots.gauss(1, 0.003) for index, clock in enumerate(shared)}
            for name, level in levels.items()}  # fmt: skip


def test_a_clear_winner_in_spite_of_a_noisy_clock():
    winner = clear_winner(group(slow=1.30, fast=1.00, near=1.02))
    assert (winner.name, winner.tied, winner.is_clear) == ("fast", (), True)
    assert winner.margin.ratio == pytest.approx(1.02, abs=0.003)


def test_those_within_the_interval_are_named():
    winner = clear_winner(group(slow=1.30, one=1.0, two=1.0))
    assert not winner.is_clear
    assert {winner.name, *winner.tied} == {"one", "two"}
    assert winner.margin.verdict in ("same", "unclear")


def test_one_subject_wins_alone_and_none_not_at_all():
    alone = clear_winner({"only": {0: 1.0}, "failed": {}})
    assert (alone.name, alone.margin, alone.is_clear) == ("only", None, True)
    assert clear_winner({"failed": {}}) is None
    assert clear_winner({}) is None


def test_without_common_rounds_or_with_few_nothing_is_clear():
    apart = clear_winner({"a": {0: 1.0, 1: 1.0}, "b": {7: 9.0, 8: 9.0}})
    assert (apart.name, apart.tied, apart.margin) == ("a", ("b",), None)
    few = clear_winner({"a": dict.fromkeys(range(5), 1.0), "b": dict.fromkeys(range(5), 9.0)})
    assert (few.tied, few.margin.ratio) == (("b",), pytest.approx(9.0))


def test_noise_is_a_wide_interval_or_a_long_tail():
    assert not is_noisy(summarise([1.00, 1.01] * 30))
    assert is_noisy(summarise([1.00, 1.06] * 30))
    assert is_noisy(summarise([1.0] * 54 + [1.5] * 6))
    assert not is_noisy(summarise([1.0] * 58 + [1.5] * 2))
    assert not is_noisy(summarise([1.0, 1.05, 1.02]))
    assert is_noisy(summarise([1.0, 1.5, 1.02]))


@pytest.mark.parametrize(
    ("half", "tail", "noisy"),
    [(0.039, 0.19, False), (0.041, 0.0, True), (0.0, 0.21, True), (None, 0.19, False), (None, 0.21, True)],
)
def test_noise_is_over_two_per_cent_or_a_tail_over_ten(half, tail, noisy):
    known = {} if half is None else {"ci_low": 2.0 - half, "ci_high": 2.0 + half}
    plain = summarise([2.0])
    assert is_noisy(dataclasses.replace(plain, p95=2.0 + tail, **known)) is noisy


def test_the_room_needs_neither_torch_nor_numpy():
    code = (
        "import sys; sys.modules.update(torch=None, triton=None, numpy=None);"
        "import attnbench.stats.design, attnbench.stats.ranking, attnbench.stats.replicates;"
        "from attnbench.stats.stopping import StopRule;"
        "assert StopRule().decide([[1.0] * 53], 0.0) == 'rel-ci'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
