"""Median, interval, percentiles, and the effect of serial dependence on the interval."""

import math
import random
import statistics
from itertools import pairwise

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbench.stats.dependence import autoregression, of_signs, variance_inflation, without_bias
from attnbench.stats.summary import (
    Summary,
    critical_value,
    interval_of,
    is_wild,
    median_interval,
    order_rank,
    percentile,
    summarise,
)
from waiting import calls_of

TIMES = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=60)


def independent(samples):
    """The interval's order statistics without the widening."""
    return (sorted(samples)[order_rank(len(samples)) - 1], sorted(samples)[-order_rank(len(samples))])


@pytest.mark.parametrize(
    ("count", "rank"),
    # Nonparametric tables of the sign test, two-sided 5 %.
    [(5, 0), (6, 1), (7, 1), (8, 1), (9, 2), (10, 2), (12, 3), (15, 4), (17, 5), (20, 6), (25, 8), (50, 18), (100, 40)],
)
def test_ranks_of_the_sign_test_tables(count, rank):
    assert order_rank(count) == rank
    coverage = 1 - 2 * sum(math.comb(count, below) for below in range(rank)) / 2**count
    tighter = 1 - 2 * sum(math.comb(count, below) for below in range(rank + 1)) / 2**count
    assert coverage >= 0.95 > tighter


def test_rank_of_many_samples_does_not_underflow():
    assert order_rank(20_001) == pytest.approx(10_000 - 0.98 * math.sqrt(20_001), abs=2)


def test_interval_is_measured_times():
    samples = [5.0, 3.0, 9.0, 1.0, 7.0, 2.0, 8.0, 4.0, 6.0, 10.0]
    assert median_interval(samples) == (2.0, 9.0)
    assert median_interval(samples, 0.6) == (4.0, 7.0)
    assert median_interval(samples[:5]) is None
    assert median_interval(samples[:6]) == (1.0, 9.0)


def test_dependence_moves_the_ends_outwards_by_the_root_of_what_it_costs():
    samples = [float(value) for value in range(1, 101)]
    # (100 - 2 * sqrt(100 * inflation)) / 2, rounded down
    for inflation, rank in ((1.0, 40), (1.3, 38), (2.0, 35), (9.0, 20), (200.0, 1)):
        assert interval_of(samples, inflation) == (float(rank), float(101 - rank)), inflation
    assert critical_value(100) == pytest.approx(2.0), "what the exact rank shows is more than the normal 1.96"
    assert critical_value(6) == pytest.approx(1.959964), "of six the extremes are only 1.63"


def test_summary_of_known_samples():
    assert summarise([4.0, 1.0, 3.0, 2.0]) == Summary(
        num_samples=4, median=2.5, mean=2.5, std=statistics.stdev([1, 2, 3, 4]), min=1.0, max=4.0,
        p95=pytest.approx(3.85), p99=pytest.approx(3.97), ci_low=None, ci_high=None,
    )  # fmt: skip


def test_summary_of_one_sample_has_no_spread():
    summary = summarise([0.25])
    assert (summary.median, summary.p99, summary.std, summary.ci_low) == (0.25, 0.25, None, None)


@pytest.mark.parametrize("samples", [[], [1.0, -0.1], [1.0, math.nan], [math.inf]])
def test_what_is_no_time_is_refused(samples):
    with pytest.raises(ValueError, match="sample"):
        summarise(samples)


@given(TIMES)
def test_percentiles_are_numpys(samples):
    for share in (0.5, 0.95, 0.99):
        assert percentile(sorted(samples), share) == pytest.approx(numpy.percentile(samples, 100 * share), rel=1e-12)


@given(TIMES, st.randoms(use_true_random=False))
def test_order_matters_to_the_interval_only(samples, lots):
    shuffled = lots.sample(samples, len(samples))
    first, second = summarise(samples), summarise(shuffled)
    for name in ("num_samples", "median", "mean", "std", "min", "max", "p95", "p99"):
        assert getattr(first, name) == getattr(second, name)


@given(TIMES, st.integers(-8, 8))
def test_scaling_the_samples_scales_the_summary(samples, power):
    scale = 2.0**power  # exact in binary: no rounding hides a mistake
    first, second = summarise(samples), summarise([scale * sample for sample in samples])
    for name in ("median", "mean", "std", "min", "max", "p95", "p99", "ci_low", "ci_high"):
        value = getattr(first, name)
        assert getattr(second, name) == (None if value is None else scale * value)


@given(TIMES)
def test_everything_lies_between_the_extremes(samples):
    summary = summarise(samples)
    assert summary.min <= summary.median <= summary.p95 <= summary.p99 <= summary.max
    assert summary.min <= summary.mean <= summary.max
    if summary.ci_low is not None:
        assert summary.min <= summary.ci_low <= summary.median <= summary.ci_high <= summary.max


@given(st.lists(st.floats(1e-3, 1e3), min_size=6, max_size=60))
def test_dependence_only_widens(samples):
    low, high = median_interval(samples)
    plain = independent(samples)
    assert low <= plain[0]
    assert high >= plain[1]


def test_a_drift_widens_the_interval_and_white_noise_hardly():
    rng = numpy.random.default_rng(3)
    white = [variance_inflation(rng.normal(1, 0.01, 100).tolist()) for _ in range(200)]
    assert numpy.mean(white) < 1.15
    assert numpy.median(white) == 1.0
    ramp = [1 + 0.001 * step for step in range(100)]
    assert variance_inflation(ramp) > 20
    low, high = median_interval(ramp)
    assert high - low > 3 * (independent(ramp)[1] - independent(ramp)[0])


def test_neighbours_that_resemble_each_other_cost_what_their_signs_do():
    """Ranks -2.5 ... 2.5 of six rising samples: their first correlation, by hand."""
    ranks = [-2.5, -1.5, -0.5, 0.5, 1.5, 2.5]
    first = sum(a * b for a, b in pairwise(ranks)) / 5 / (sum(one * one for one in ranks) / 6) + 1 / 6
    without = min(0.98, 6 * first / 4)
    regressed = 1 + 2 * sum(2 / math.pi * math.asin(round(without, 3) ** lag) for lag in range(1, 400))
    pair = 1 + 2 / math.pi * math.asin(first)
    second, third = (
        sum(a * b for a, b in zip(ranks, ranks[lag:], strict=False)) / (6 - lag) / (17.5 / 6) + 1 / 6 for lag in (2, 3)
    )
    signs = 2 / math.pi * (math.asin(max(-1.0, second)) + math.asin(max(-1.0, third)))
    summed = 2 * (pair + max(0.0, min(pair, signs))) - 1
    summed /= max(0.25, 1 - summed / 6)
    assert variance_inflation([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) == pytest.approx(max(summed, regressed))
    assert variance_inflation([1.0, 2.0, 3.0]) == 1.0, "too few"


def test_the_correlation_of_signs_is_that_of_normal_values():
    assert [of_signs(one) for one in (0.0, 0.5, -0.5)] == pytest.approx([0.0, 1 / 3, -1 / 3])
    assert [of_signs(one) for one in (1.2, -1.2)] == pytest.approx([1.0, -1.0]), "sums of few may exceed 1"


@pytest.mark.parametrize("strength", [0.0, 0.3, 0.5, 0.9])
def test_an_autoregression_costs_the_sum_over_its_signs(strength):
    signs = [2 / math.pi * math.asin(strength**lag) for lag in range(1, 400)]
    assert autoregression(strength) == pytest.approx(1 + 2 * sum(signs))


@pytest.mark.parametrize(("first", "count", "found"), [(0.3, 10, 0.5), (0.3, 6, 0.45), (0.9, 8, 0.98), (-0.1, 50, 0.0)])
def test_the_bias_of_short_series_is_taken_out(first, count, found):
    assert without_bias(first, count) == pytest.approx(found)


@pytest.mark.parametrize("samples", [[1.0] * 50, [1.0, 2.0, 1.5], [1.0] * 49 + [2.0]])
def test_no_dependence_is_made_up(samples):
    assert variance_inflation(samples) == 1.0


def test_two_ticks_at_random_are_not_a_drift():
    lots = random.Random(5)
    streams = [[1.0 + (lots.random() < 0.55) for _ in range(100)] for _ in range(100)]
    assert statistics.mean(map(variance_inflation, streams)) < 1.2


@pytest.mark.parametrize(
    ("name", "draw", "truth"),
    [
        ("normal", lambda rng, size: rng.normal(0, 1, size), 0.0),
        ("lognormal", lambda rng, size: rng.lognormal(0, 1, size), 1.0),
        ("two peaks", lambda rng, size: 9.0 * (rng.random(size) < 0.4) + rng.random(size), 0.5 / 0.6),
    ],
)
@pytest.mark.parametrize("count", [7, 31])
def test_coverage_of_independent_samples(name, draw, truth, count):
    rng = numpy.random.default_rng(count)
    intervals = [median_interval(row.tolist()) for row in draw(rng, (2_000, count))]
    covered = sum(low <= truth <= high for low, high in intervals) / len(intervals)
    assert 0.945 <= covered <= 0.99, name


def test_coverage_under_a_drift():
    rng = numpy.random.default_rng(11)
    aware = naive = 0
    for noise in rng.normal(0, 0.6, (300, 400)):
        stream = [0.0]
        for step in noise:
            stream.append(0.8 * stream[-1] + step)
        low, high = median_interval(stream)
        aware += low <= 0 <= high
        low, high = independent(stream)
        naive += low <= 0 <= high
    assert aware / 300 >= 0.91
    assert naive / 300 <= 0.70


def test_an_interval_wider_than_its_value_is_wild_and_an_unknown_one_is_not():
    assert is_wild(1.0, 0.4, 1.5)
    assert not is_wild(1.0, 0.5, 1.5)
    assert not any(is_wild(*one) for one in ((None, 0.4, 1.5), (1.0, None, 1.5), (1.0, 0.4, None)))


def test_what_a_summary_costs_grows_with_the_samples_and_no_faster():
    lots = random.Random(1)
    for count in (100, 1000):
        samples = [lots.gauss(1, 0.01) for _ in range(count)]
        summarise(samples)  # tables that are made once
        assert calls_of(lambda samples=samples: summarise(samples))[1] < 6 * count


@pytest.mark.parametrize("rounding", [numpy.round, numpy.floor, numpy.ceil])
@pytest.mark.parametrize("noise", [0.0, 0.003, 0.01])
@pytest.mark.parametrize("count", [10, 30, 100, 300])
def test_a_coarse_timer_is_in_the_interval(rounding, noise, count):
    rng, tick, held, least = numpy.random.default_rng(count), 0.032, 0, math.inf
    for _ in range(100):
        truth = 5.0 + tick * rng.random()
        samples = (rounding(truth * (1 + noise * rng.standard_normal(count)) / tick) * tick).tolist()
        found = summarise(samples, tick=tick)
        held += found.ci_low <= truth <= found.ci_high
        least = min(least, found.ci_high - found.ci_low)
    assert held >= 95
    assert least >= 2 * tick * (1 - 1e-9)


def test_a_tick_moves_both_ends_and_not_below_nothing():
    samples = [5.0, 3.0, 9.0, 1.0, 7.0, 2.0, 8.0, 4.0, 6.0, 10.0]
    assert median_interval(samples, tick=0.5) == (1.5, 9.5)
    assert median_interval([0.0] * 10, tick=0.5) == (0.0, 0.5)
    assert median_interval(samples[:5], tick=0.5) is None
    assert summarise(samples, tick=0.5).median == summarise(samples).median
    assert median_interval([-1.0, 4.0, 1.0, 3.0, 2.0, 5.0], tick=0.5) == (-1.5, 5.5), "logarithms may be below"
