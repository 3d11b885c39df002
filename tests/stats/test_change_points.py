"""Level changes: the optimum is exact, drift and outliers raise no alarm, a shift is found at its place."""

from __future__ import annotations

import importlib.util
import json
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbench.stats import change_points as module
from attnbench.stats import shift_test
from attnbench.stats.change_points import (
    FEWEST,
    SHORTEST,
    _Candidates,
    _power,
    _without_outliers,
    _without_small,
    change_points,
    segment,
)
from attnbench.stats.shift_test import STRENGTHS, confirmed, statistics, threshold

ROOT = Path(__file__).resolve().parents[2]


def _simulation():
    """benchmarks/change_points.py, whose name a module of ours has too."""
    spec = importlib.util.spec_from_file_location("benchmark_change_points", ROOT / "benchmarks/change_points.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


simulation = _simulation()
KINDS, NOISE, SHIFT = simulation.KINDS, simulation.NOISE, 0.03


def found_at(logs):
    return [change.index for change in change_points(np.exp(logs).tolist())]


def false_alarms(kind, count, series, seed=7):
    lots = np.random.default_rng(seed)
    return sum(bool(found_at(KINDS[kind](lots, count))) for _ in range(series)) / series


def hits(kind, count, series, at, seed=8):
    lots, found = np.random.default_rng(seed), 0
    for _ in range(series):
        logs = KINDS[kind](lots, count)
        logs[at:] += SHIFT
        found += any(abs(place - at) <= 3 for place in found_at(logs))
    return found / series


def plain_optimum(values, penalty):
    """The same recursion, over every way to cut, with nothing pruned."""
    count = len(values)
    values = values - np.median(values)
    sums, squares = np.r_[0.0, np.cumsum(values)], np.r_[0.0, np.cumsum(values**2)]
    best, last = np.full(count + 1, np.inf), np.zeros(count + 1, int)
    best[0] = -penalty
    for end in range(SHORTEST, count + 1):
        starts = np.r_[0, np.arange(SHORTEST, end - SHORTEST + 1)]
        cost = best[starts] + squares[end] - squares[starts] - (sums[end] - sums[starts]) ** 2 / (end - starts)
        best[end], last[end] = cost.min() + penalty, starts[cost.argmin()]
    cuts = []
    while count:
        count = last[count]
        cuts.append(int(count))
    return cuts[-2::-1]


def cost_of(values, cuts, penalty):
    return sum(((part - part.mean()) ** 2).sum() for part in np.split(values, cuts)) + penalty * len(cuts)


@given(st.integers(0, 2**32 - 1), st.integers(12, 400), st.sampled_from([0.02, 0.1]), st.booleans())
@settings(max_examples=80)
def test_the_optimum_is_exact_whatever_is_pruned(seed, count, often, rounded):
    lots = np.random.default_rng(seed)
    values = lots.normal(0.0, NOISE, count) + np.cumsum((lots.random(count) < often) * lots.normal(0.0, 0.05, count))
    values = np.round(values, 2) if rounded else values  # ties
    penalty = 5e-4
    ours, plain = segment(values, penalty), plain_optimum(values, penalty)
    assert cost_of(values, ours, penalty) == pytest.approx(cost_of(values, plain, penalty), abs=1e-9)
    if not rounded:
        assert ours == plain


@pytest.mark.parametrize(
    "kind",
    [
        "normal, 1 %",
        "two peaks, 50/50",
        "two peaks, 90/10",
        "two peaks, sticky",
        "drift, 0.8",
        "drift, 0.9",
        "5 % outliers of +50 %",
    ],
)
def test_at_most_one_in_twenty_steady_series_of_a_thousand_runs_raises_an_alarm(kind):
    # The seed is fixed.
    assert false_alarms(kind, 1000, 20) <= 0.05


@pytest.mark.parametrize(
    ("kind", "least"), [("normal, 1 %", 0.95), ("two peaks, 50/50", 0.95), ("5 % outliers of +50 %", 0.85)]
)
def test_a_shift_of_three_percent_is_found_to_within_three_runs(kind, least):
    assert hits(kind, 1000, 20, 500) >= least
    assert hits(kind, 100, 60, 50) >= least


def test_the_size_and_place_of_a_shift_are_right():
    logs = np.random.default_rng(0).normal(0.0, NOISE, 300)
    logs[120:] += np.log(1.05)
    logs[220:] -= np.log(1.08)
    first, second = change_points((2.0 * np.exp(logs)).tolist())
    assert (first.index, second.index) == (pytest.approx(120, abs=2), pytest.approx(220, abs=2))
    assert first.ratio == pytest.approx(1.05, abs=0.004)
    assert second.ratio == pytest.approx(1 / 1.08, abs=0.004)
    assert first.before == pytest.approx(2.0, rel=0.003)
    assert first.after == second.before


def test_a_regression_of_the_last_few_runs_is_news():
    logs = np.random.default_rng(1).normal(0.0, NOISE, 200)
    logs[-6:] += 0.06
    assert found_at(logs) == [194]


def test_a_single_outlier_or_a_short_burst_is_no_change():
    logs = np.random.default_rng(2).normal(0.0, NOISE, 200)
    logs[50] += 0.5
    logs[100:103] += 0.3
    assert found_at(logs) == []


def test_a_change_too_small_to_matter_is_not_reported():
    logs = np.random.default_rng(3).normal(0.0, 1e-4, 200)
    logs[100:] += 0.003
    assert found_at(logs) == []
    assert [change.index for change in change_points(np.exp(logs).tolist(), least_change=0.001)] == [100]


@pytest.mark.parametrize("count", [0, 1, FEWEST - 1, FEWEST, 15, 16, 40])
def test_equal_values_and_short_series_have_no_change(count):
    assert change_points([1.25] * count) == ()


def test_exact_levels_are_cut_where_they_are():
    assert [change.index for change in change_points([1.0] * 20 + [2.0] * 20)] == [20]


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_what_has_no_logarithm_is_refused(bad):
    with pytest.raises(ValueError, match="positive and finite"):
        change_points([1.0] * 20 + [bad])


def test_ten_times_as_many_runs_look_at_no_thirty_times_as_many_starts(monkeypatch):
    looked = []
    best = _Candidates.best
    monkeypatch.setattr(_Candidates, "best", lambda self, *given: looked.append(self._count) or best(self, *given))
    starts = []
    for count in (1_000, 10_000):
        values = np.exp(np.random.default_rng(4).normal(0.0, NOISE, count))
        values[7 * count // 10 :] *= 1 + SHIFT
        looked.clear()
        [change] = change_points(values.tolist())
        assert abs(change.index - 7 * count // 10) <= 3
        starts.append(sum(looked))
    assert starts[1] < 15 * starts[0]  # of every pair of runs it would be 100


def every_way(count, shortest):
    """All ways to cut so many values into levels."""
    yield []
    for first in range(shortest, count - shortest + 1):
        yield from ([first, *(first + one for one in rest)] for rest in every_way(count - first, shortest))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("count", [3, 5, 6, 11, 14])
def test_no_way_to_cut_costs_less(seed, count):
    lots = np.random.default_rng(seed)
    values = lots.normal(0.0, 1.0, count) + 4.0 * (np.arange(count) >= count // 2)
    penalty = float(lots.choice([0.1, 1.0, 10.0]))
    found = segment(values, penalty)
    assert found in list(every_way(count, 3))
    assert cost_of(values, found, penalty) == pytest.approx(
        min(cost_of(values, cuts, penalty) for cuts in every_way(count, 3))
    )


def test_twelve_runs_are_enough_and_eleven_are_not():
    assert [one.index for one in change_points([1.0] * 6 + [2.0] * 6)] == [6]
    assert change_points([1.0] * 5 + [2.0] * 6) == ()


def test_a_cut_costs_twice_the_logarithm_of_the_runs_in_variances(monkeypatch):
    asked = []
    monkeypatch.setattr(module, "segment", lambda calm, penalty: asked.append((calm, penalty)) or [])
    values = np.exp(np.random.default_rng(10).normal(0.0, NOISE, 50))
    assert change_points(values.tolist()) == ()
    ((calm, penalty),) = asked
    assert penalty == pytest.approx(2.0 * np.log(50) * _power(np.diff(calm)))
    assert calm == pytest.approx(_without_outliers(np.log(values)))


def test_a_value_is_drawn_in_to_three_spreads_of_its_neighbours():
    lots = np.random.default_rng(9)
    for count in (13, 14, 40):
        logs = lots.normal(0.0, 1.0, count)
        logs[count // 3] = 50.0
        window = min(15, count if count % 2 else count - 1)
        reflected = [*logs[::-1], *logs, *logs[::-1]]
        middle = np.array(
            [np.median(reflected[at - window // 2 : at + window // 2 + 1]) for at in range(count, 2 * count)]
        )
        away = logs - middle
        bound = 3.0 * np.quantile(np.abs(away), 0.9) / 1.6448536
        drawn = _without_outliers(logs)
        assert drawn == pytest.approx(middle + np.clip(away, -bound, bound), abs=1e-6)
        assert drawn[count // 3] < 20.0


def test_the_smallest_of_the_changes_that_do_not_matter_goes_first():
    logs = np.repeat([0.0, 0.1, 0.103, 0.09, 0.3], 4)
    assert _without_small(logs, [4, 8, 12, 16], 0.05) == [4, 16]
    assert _without_small(logs, [4, 8, 12, 16], 0.0035) == [4, 12, 16]
    assert _without_small(logs, [4, 8, 12, 16], 0.001) == [4, 8, 12, 16]
    assert _without_small(logs, [8], 1.0) == []


def test_a_change_as_large_as_the_limit_is_reported():
    values = [1.0] * 20 + [1.25] * 20
    assert [one.index for one in change_points(values, least_change=0.2499)] == [20]
    assert change_points(values, least_change=0.2501) == ()
    (change,) = change_points(values)
    assert (change.before, change.after, change.ratio) == pytest.approx((1.0, 1.25, 1.25))


@pytest.mark.parametrize(("count", "left_out"), [(6, 2), (9, 2), (60, 2), (100, 3), (3, 1)])
def test_the_largest_differences_are_left_out_of_the_power(count, left_out):
    differences = np.arange(1.0, count + 1)
    share = left_out / count
    bound = NormalDist().inv_cdf(1 - share / 2)
    kept = 1 - 2 * bound * NormalDist().pdf(bound) / (1 - share)
    assert _power(differences) == pytest.approx((differences[:-left_out] ** 2).mean() / kept / 2)


# ── which proposals hold ───────────────────────────────────────────────────────────────────────────


def chosen(monkeypatch, gains, proposals, pairs=(), count=100):
    """What is confirmed where each proposal gains so much over its threshold, and each two neighbours so much."""
    limit = 16.0 + 2.0 * np.log(count)

    def statistics(values, taken, left):
        single = np.array([gains[one] + limit for one in left])
        double = [dict(pairs).get(pair, -50.0) + limit + 9.0 for pair in pairwise(left)]
        return single, np.array(double)

    monkeypatch.setattr(shift_test, "statistics", statistics)
    return confirmed(np.zeros(count), proposals)


def test_changes_above_their_threshold_are_taken_the_largest_first(monkeypatch):
    assert threshold(100) == pytest.approx(16.0 + 2.0 * np.log(100))
    assert chosen(monkeypatch, {20: -1e-9, 50: 3.0, 80: 1e-9}, [20, 50, 80]) == [50, 80]
    assert chosen(monkeypatch, {20: -1.0}, [20]) == []


def test_two_neighbours_are_taken_where_together_they_gain_more_than_either(monkeypatch):
    gains = {20: -1.0, 28: -1.0, 80: -1.0}
    assert chosen(monkeypatch, gains, [20, 28, 80], {(20, 28): 1.0}) == [20, 28]
    assert chosen(monkeypatch, gains, [20, 28, 80], {(20, 28): 1.0, (28, 80): 2.0}) == [28, 80]
    assert chosen(monkeypatch, gains, [20, 28, 80], {(20, 28): -1e-9}) == []
    assert chosen(monkeypatch, {20: -1.0, 27: -1.0}, [20, 27], {(20, 27): 50.0}) == [], "seven runs are outliers"
    assert chosen(monkeypatch, {20: 1.0, 28: -1.0}, [20, 28], {(20, 28): 0.5}) == [20]
    assert chosen(monkeypatch, {20: 1.0, 28: -1.0}, [20, 28], {(20, 28): 1.5}) == [20, 28]


def test_strengths_rise_from_none_to_nearly_all():
    assert list(STRENGTHS) == sorted(set(STRENGTHS))
    assert STRENGTHS[0] == 0.0
    assert STRENGTHS[-1] < 1.0


# ── looked at after every run ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("kind", "series", "most"),
    [("normal, 1 %", 4, 0), ("heavy tails (t, 3)", 4, 0), ("drift, 0.5", 4, 0), ("drift, 0.9", 8, 1)],
)
def test_a_quiet_history_raises_no_alarm_in_a_hundred_looks(kind, series, most):
    histories = [KINDS[kind](np.random.default_rng([77, one]), 111) for one in range(series)]
    alarms = [simulation.first_alarm(logs, every=8) for logs in histories]
    assert sum(one is not None for one in alarms) <= most, alarms


@pytest.mark.parametrize("kind", ["normal, 1 %", "heavy tails (t, 3)", "drift, 0.5", "drift, 0.7", "drift, 0.9"])
def test_a_step_of_five_per_cent_is_found_within_a_few_runs(kind):
    delays = [simulation.delay(KINDS[kind](np.random.default_rng([78, one]), 58), 0.05) for one in range(5)]
    assert sum(one is not None and one <= 6 for one in delays) >= 4, delays


def test_the_committed_simulation_keeps_the_promise():
    data = json.loads((ROOT / "benchmarks/results/change-points-simulated.json").read_text("utf-8"))
    rows = {row["noise"]: row for row in data["kinds"]}
    assert list(rows) == list(KINDS)
    assert data["looks"] == 100
    for kind, row in rows.items():
        assert row["series"] >= 100
        if not kind.startswith("two peaks") and kind != "drift, 0.9, heavy tails (t, 3)":  # docs: not promised
            assert len(row["alarms"]) <= 0.05 * row["series"], kind


def test_a_change_is_held_against_an_autoregression_without_it():
    lots = np.random.default_rng(5)
    drifting = KINDS["drift, 0.9"](lots, 100)
    (alone,), _ = statistics(drifting, [], [50])
    stepped = drifting + 0.05 * (np.arange(100) >= 50)
    (found,), _ = statistics(stepped, [], [50])
    assert found > threshold(100) > alone
    assert confirmed(stepped, [20, 50, 80]) == [50]
    assert confirmed(stepped, []) == []


def test_a_level_that_came_and_went_is_taken_up_as_a_pair():
    logs = np.random.default_rng(6).normal(0.0, NOISE, 400)
    logs[200:230] += 0.02
    assert confirmed(logs, [200, 230]) == [200, 230]
    assert confirmed(logs, [100, 200, 230, 300]) == [200, 230]


def test_the_statistic_is_that_of_plain_least_squares_over_the_strengths():
    lots = np.random.default_rng(7)
    logs = KINDS["drift, 0.5"](lots, 60)
    logs[40:] += 0.02

    def likelihood(cuts):
        best = -np.inf
        for strength in STRENGTHS:
            both = np.column_stack([logs, *[(np.arange(60) >= cut) * 1.0 for cut in (0, *cuts)]])
            white = np.vstack([np.sqrt(1 - strength**2) * both[:1], both[1:] - strength * both[:-1]])
            squares = np.linalg.lstsq(white[:, 1:], white[:, 0], rcond=None)[1][0]
            best = max(best, np.log(1 - strength**2) - 60 * np.log(squares))
        return best

    cuts = (30, 40, 47)
    single, double = statistics(logs, [10], cuts)
    few = (60 - 1 - 3) / 60
    assert single == pytest.approx([few * (likelihood((10, cut)) - likelihood((10,))) for cut in cuts], abs=1e-6)
    pairs = [few * (likelihood((10, *pair)) - likelihood((10,))) for pair in pairwise(cuts)]
    assert double == pytest.approx(pairs, abs=1e-6)


def test_the_power_of_noise_is_found_beside_steps_and_outliers():
    lots = np.random.default_rng(8)
    noise = lots.normal(0.0, NOISE, 4000)
    assert _power(np.diff(noise)) == pytest.approx(NOISE**2, rel=0.1)
    noise[::400] += 50 * NOISE
    assert _power(np.diff(noise)) == pytest.approx(NOISE**2, rel=0.15)
