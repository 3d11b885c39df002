"""The ranking of contestants after a stage and after a final: every number by hand."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest

from attnbench.stats.finals import final_levels, joined, with_offset
from attnbench.stats.placing import Placing, hope, log_ratios, own_scale, placings, pooled_scale, prior, slower

NORMAL = NormalDist()


def place(log, error=0.01, anchor="a", ms=1.0):
    return Placing(log, error, anchor, 1, 5, ms)


def test_ratios_are_of_the_rounds_that_both_have_in_their_order():
    assert log_ratios({3: 1.0, 1: 2.0, 0: 9.0}, {1: 4.0, 3: 8.0, 2: 9.0}) == pytest.approx([math.log(2), math.log(8)])
    assert log_ratios({0: 1.0}, {1: 1.0}) == []


def test_the_common_scale_is_a_quantile_of_the_steps_between_neighbours():
    unit = NORMAL.inv_cdf(0.875) * math.sqrt(2)
    assert pooled_scale([[0.0, 1.0, 3.0], [5.0, 1.0]]) == pytest.approx(4 / unit), "the third of 1, 2 and 4"
    assert pooled_scale([[0.0, 3.0, 1.0, 2.0, 12.0]]) == pytest.approx(3 / unit), "the third of 1, 2, 3 and 10"
    assert pooled_scale([[0.0, 2.0]]) == pytest.approx(2 / unit)
    assert pooled_scale([[1.0], []]) == 0.0


def test_ones_own_scale_counts_by_its_rounds_beside_eight_of_all():
    logs = [0.0, 1.0, 3.0, 3.0]
    own = 1.0 / (NORMAL.inv_cdf(0.75) * math.sqrt(2))
    assert own_scale(logs, 0.1) == pytest.approx(own), "never under what it shows itself"
    assert own_scale(logs, 2.0) == pytest.approx(math.sqrt((8 * 4 + 3 * own**2) / 11))
    assert own_scale([1.0], 0.3) == 0.3


def test_a_placing_has_its_median_ratio_and_the_error_of_it():
    first = {"a": {0: 1.0, 1: 1.2, 2: 1.1}, "b": {0: 2.0, 1: 2.5, 2: 2.1}}
    second = {"a": {0: 1.4}, "c": {0: 1.4, 7: 1.5}, "d": {5: 3.0, 6: 5.0}}
    found = placings("a", [first, second], 2, tick_ms=0.1)
    level = (1.1 + 1.2) / 2
    assert found["a"] == Placing(0.0, 0.0, "a", 2, 4, level)
    logs = [math.log(2.0), math.log(2.5 / 1.2), math.log(2.1 / 1.1)]
    scale = pooled_scale([logs])
    error = math.hypot(own_scale(logs, scale) * math.sqrt(math.pi / 2) / math.sqrt(3), 0.1 / 2.1 / math.sqrt(3))
    middle = sorted(logs)[1]
    assert found["b"] == Placing(middle, pytest.approx(error), "a", 2, 3, pytest.approx(level * math.exp(middle)))
    assert (found["c"].log, found["c"].rounds) == (0.0, 1)
    assert found["c"].error == pytest.approx(
        math.hypot(scale * math.sqrt(math.pi / 2), 0.1 / ((1.4 + 1.5) / 2) / math.sqrt(3))
    )
    assert found["d"] == Placing(pytest.approx(math.log(4.0 / level)), math.inf, "a", 2, 2, 4.0)


def test_who_is_behind_the_anchor_by_its_half_of_the_risk_is_slower():
    before = NORMAL.inv_cdf(1 - 0.05 / 2)
    for log, out in ((0.01 * before + 1e-6, {"b"}), (0.01 * before - 1e-6, set())):
        assert slower({"a": place(0.0, 0.0), "b": place(log)}, 0.05) == out
    # Not of one that is known without an error, which only the anchor is.
    assert slower({"a": place(0.0, 0.0), "b": place(0.0, 0.0, "b")}, 0.05) == set()


def test_who_is_behind_the_leader_by_the_other_half_shared_among_all_is_slower():
    after = NORMAL.inv_cdf(1 - 0.05 / 2 / 3)
    reach = after * math.hypot(0.01, 0.02)
    for log, out in ((-reach - 1e-6, {"a", "c"}), (-reach + 1e-6, {"a"})):
        placed = {"a": place(0.0, 0.0), "b": place(log, 0.02), "c": place(0.0)}
        assert slower(placed, 0.05) == out, "the anchor has no error of its own and goes before"
    assert slower({"a": place(0.0, math.inf), "b": place(9.0, math.inf)}, 0.05) == set()
    placed = {"a": place(0.0, 0.0), "b": place(-9.0, math.inf)}
    assert slower(placed, 0.05) == set(), "who was never beside the anchor leads nobody"


@pytest.mark.parametrize(("log", "error"), [(0.01, 0.02), (-0.03, 0.01), (0.0, 0.05)])
def test_hope_is_the_expected_gain(log, error):
    normal, step = NormalDist(log, error), error / 1000
    gain = sum(max(0.0, -at) * normal.pdf(at) * step for at in (log + error * k / 1000 for k in range(-8000, 8001)))
    assert hope(log, error) == pytest.approx(gain, rel=1e-4)


def test_the_prior_of_a_stage_is_of_all_but_its_anchor():
    placed = {"a": place(0.0, 0.0), "b": place(0.02, 0.01), "c": place(0.08, 0.02), "d": place(9.0, math.inf)}
    mean, variance = prior(placed)
    assert mean == pytest.approx(0.05)
    assert variance == pytest.approx(2 * 0.03**2 - (0.01**2 + 0.02**2) / 2)
    assert prior({"b": place(0.0, 0.1), "c": place(0.01, 0.1)}) == (pytest.approx(0.005), 0.0)
    assert prior({"a": place(0.0, 0.0), "b": place(0.0)}) is None


# ── the final ──────────────────────────────────────────────────────────────────────────────────────


def still(**levels):
    return {name: {index: ms * (1.0 + 0.1 * index) for index in range(10)} for name, ms in levels.items()}


def test_heats_are_joined_with_rounds_apart():
    found = joined([{"a": {0: 1.0, 4: 2.0}}, {"a": {0: 3.0}}])
    assert found == {"a": {0: 1.0, 4: 2.0, 1_000_000: 3.0}}


def test_an_offset_is_in_the_error_of_both_sides_of_a_placing():
    assert with_offset(place(0.1, 0.03), 0.04).error == pytest.approx(math.sqrt(0.03**2 + 2 * 0.04**2))
    assert with_offset(place(0.0, 0.0), 0.04) == place(0.0, 0.0)


def test_levels_are_means_over_heats_and_what_heats_differ_by_is_the_offset():
    heats = [still(a=1.0, b=math.exp(0.02)), still(a=3.0, b=3.0 * math.exp(0.04))]
    levels, errors, offset = final_levels(heats, 0.0)
    assert levels == pytest.approx({"a": -0.015, "b": 0.015})
    # Each lies 0.005 off its mean in either heat; of two that are centred, half of the spread is left.
    assert offset == pytest.approx(math.sqrt(2 * 0.005**2 * 2), rel=1e-6)
    assert errors == pytest.approx(dict.fromkeys("ab", offset / math.sqrt(2)), rel=1e-6)


def test_one_heat_or_one_finalist_shows_no_offset():
    levels, errors, offset = final_levels([still(a=1.0, b=1.1)], 0.0)
    assert levels["b"] - levels["a"] == pytest.approx(math.log(1.1))
    assert (offset, errors["a"]) == (0.0, pytest.approx(0.0, abs=1e-12))
    assert final_levels([still(a=1.0), still(a=2.0)], 0.0) == ({"a": 0.0}, {"a": 0.0}, 0.0)


def test_the_tick_of_the_timer_is_in_the_error_of_a_level():
    heat = {"a": dict.fromkeys(range(8), 1.0), "b": dict.fromkeys(range(8), 2.0)}
    _, errors, _ = final_levels([heat, heat], 0.01)
    # Equal samples leave a corner times the root of two over their number; two heats halve the variance.
    for name, ms in (("a", 1.0), ("b", 2.0)):
        assert errors[name] == pytest.approx(0.01 / ms * math.sqrt(2) / 8 / math.sqrt(2), rel=1e-6)


def test_parts_that_share_no_round_are_held_against_the_anchor():
    clock = dict.fromkeys(range(8), 1.0) | dict.fromkeys(range(8, 16), 1.3)
    heat = {"a": clock, "b": dict.fromkeys(range(8), 1.1), "c": dict.fromkeys(range(8, 16), 1.3 * 1.2)}
    levels, _, _ = final_levels([heat], 0.0)
    assert levels["b"] - levels["a"] == pytest.approx(math.log(1.1))
    assert levels["c"] - levels["a"] == pytest.approx(math.log(1.2))
    apart = heat | {"d": {99: 1.5}}
    levels, errors, _ = final_levels([apart], 0.0)
    assert levels["d"] - levels["b"] == pytest.approx(math.log(1.5 / 1.1)), "by the bare times"
    assert set(errors.values()) == {0.0}


@pytest.mark.parametrize("shared", [5, 6])
def test_six_rounds_that_all_share_are_enough_for_the_middle_of_the_round(shared):
    """Below them the anchor is what the others are measured from, with its own noise in every level."""
    jump = {index: 2.0 if index == 0 else 1.0 for index in range(shared)}
    flat = dict.fromkeys(range(shared), 1.0)
    _levels, errors, _ = final_levels([{"a": jump, "b": flat, "c": flat}], 0.0)
    assert errors["b"] == (0.0 if shared == 6 else pytest.approx(math.log(2) / 2))
