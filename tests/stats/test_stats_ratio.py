"""The paired ratio on hand-made rounds, its symmetries, its verdicts, and replicates."""

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbench.stats.ratio import RatioEstimate, judge, paired_ratio
from attnbench.stats.replicates import combine_replicates, student_quantile
from attnbench.stats.summary import critical_value

TICK = 0.032
PAIRS = st.lists(st.tuples(st.floats(0.5, 2.0), st.floats(0.5, 2.0)), min_size=1, max_size=40)


def rounds(times):
    return dict(enumerate(times))


def ends(estimate):
    return estimate.ratio, estimate.ci_low, estimate.ci_high


def inverse(value):
    return None if value is None else pytest.approx(1 / value, rel=1e-9)


def test_median_of_the_ratios_with_its_order_statistics():
    ratios = [1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9]
    order = [4, 0, 7, 2, 8, 3, 6, 1, 5]
    own = rounds([10.0 ** (index % 3) for index in range(9)])
    estimate = paired_ratio(rounds([ratios[place] * own[index] for index, place in enumerate(order)]), own)
    assert ends(estimate) == pytest.approx((1.5, 1.2, 1.8))
    assert (estimate.num_pairs, estimate.verdict) == (9, "faster")


def test_inside_one_tick_the_centre_is_the_mean_of_the_logs():
    ratios = [1.001, 1.002, 0.998, 1.004, 0.999, 1.0005, 1.003]
    estimate = paired_ratio(rounds(ratios), rounds([1.0] * 7), tick=0.1)
    assert estimate.ratio == pytest.approx(math.exp(sum(map(math.log, ratios)) / 7), rel=1e-12)
    # Its ends: sum of the logs' distances in corners = critical value * root of (their squares + 2).
    corner = 0.1 * math.hypot(1 / 1.001, 1.0) / math.sqrt(2)
    for end, side in ((estimate.ci_low, 1), (estimate.ci_high, -1)):
        away = [(math.log(one) - math.log(end)) / corner for one in ratios]
        squares = sum(one * one for one in away) + 2
        assert sum(away) == pytest.approx(side * critical_value(7) * math.sqrt(squares), rel=1e-6)


def test_ratios_further_apart_than_a_tick_count_as_above_or_below():
    ratios, tick = [1.0, 1.1, 1.2, 1.2002, 1.201, 1.3, 1.4], 0.01
    estimate = paired_ratio(rounds(ratios), rounds([1.0] * 7), tick=tick)
    middle = sum(map(math.log, ratios[2:5])) / 3
    assert estimate.ratio == pytest.approx(math.exp(middle), rel=1e-9), "two on either side, three within a tick"
    assert paired_ratio(rounds(ratios), rounds([1.0] * 7)).ratio == pytest.approx(1.2002)
    assert paired_ratio(rounds(ratios), rounds([1.0] * 7), tick=1e-9).ratio == pytest.approx(1.2002)


def test_an_interval_with_one_end_is_unclear():
    assert judge(None, 1.0) == judge(-1.0, None) == judge(None, None) == "unclear"


def test_only_common_rounds_count():
    estimate = paired_ratio({1: 2.0, 2: 4.0, 5: 9.0}, {2: 2.0, 5: 3.0, 7: 1.0})
    assert estimate.num_pairs == 2
    assert estimate.ratio == pytest.approx(math.sqrt(2.0 * 3.0))
    assert (estimate.ci_low, estimate.ci_high, estimate.verdict) == (None, None, "unclear")


@pytest.mark.parametrize(
    ("baseline", "own", "words"),
    [({1: 1.0}, {2: 1.0}, "no round in common"), ({}, {}, "no round"), ({1: 0.0}, {1: 1.0}, "not positive"),
     ({1: 1.0}, {1: math.nan}, "not positive"), ({1: math.inf}, {1: 1.0}, "not positive")],
)  # fmt: skip
def test_what_has_no_ratio_is_refused(baseline, own, words):
    with pytest.raises(ValueError, match=words):
        paired_ratio(baseline, own)


@given(PAIRS, st.sampled_from([0.0, 1e-9, 0.01, 0.3]))
def test_exchanging_the_subjects_inverts_the_ratio(pairs, tick):
    first, second = rounds([pair[0] for pair in pairs]), rounds([pair[1] for pair in pairs])
    there, back = paired_ratio(first, second, tick=tick), paired_ratio(second, first, tick=tick)
    assert back.ratio == inverse(there.ratio)
    assert back.ci_low == inverse(there.ci_high)
    assert back.ci_high == inverse(there.ci_low)


@given(PAIRS, st.floats(0.1, 10.0), st.sampled_from([0.0, 0.01]))
def test_the_unit_does_not_matter(pairs, unit, tick):
    there = paired_ratio(rounds([a for a, _ in pairs]), rounds([b for _, b in pairs]), tick=tick)
    scaled = paired_ratio(rounds([unit * a for a, _ in pairs]), rounds([unit * b for _, b in pairs]), tick=unit * tick)
    assert scaled.ratio == pytest.approx(there.ratio, rel=1e-9)
    if there.ci_low is not None:
        assert (scaled.ci_low, scaled.ci_high) == pytest.approx((there.ci_low, there.ci_high), rel=1e-9)


@given(PAIRS, st.sampled_from([0.0, 0.02, 0.5]))
def test_the_ratio_lies_in_its_interval(pairs, tick):
    estimate = paired_ratio(rounds([a for a, _ in pairs]), rounds([b for _, b in pairs]), tick=tick)
    if estimate.ci_low is not None:
        assert estimate.ci_low <= estimate.ratio <= estimate.ci_high


def test_a_tick_far_finer_than_the_noise_changes_nothing():
    lots = random.Random(2)
    first, second = ([lots.gauss(1, 0.01) for _ in range(41)] for _ in range(2))
    plain = paired_ratio(rounds(first), rounds(second))
    for tick in (1e-12, 1e-8, 1e-6):
        assert ends(paired_ratio(rounds(first), rounds(second), tick=tick)) == pytest.approx(ends(plain), abs=3e-6)


def test_equal_ticks_leave_a_doubt_that_shrinks_with_the_rounds():
    short, long = (paired_ratio(rounds([5.12] * n), rounds([5.12] * n), tick=TICK) for n in (10, 100))
    assert short.ratio == pytest.approx(1.0, abs=1e-9)
    tick = TICK / 5.12
    assert (short.ci_high - 1) / tick == pytest.approx(0.34, abs=0.06)
    assert (long.ci_high - 1) / tick == pytest.approx(0.028, abs=0.003)
    assert long.verdict == "same"


def test_times_between_two_ticks_are_averaged_and_not_rounded():
    # 60 of 100 samples at 160 ticks, 40 at 161: the truth is 160.4, its ratio to 160 is 1.0025.
    own = [161 * TICK if index % 5 in (1, 3) else 160 * TICK for index in range(100)]
    estimate = paired_ratio(rounds(own), rounds([160 * TICK] * 100), tick=TICK)
    assert estimate.ratio == pytest.approx(1.0025, abs=2e-4)
    assert paired_ratio(rounds(own), rounds([160 * TICK] * 100)).ratio == 1.0


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(1.01, 1.02, "faster"), (0.97, 0.99, "slower"), (0.996, 1.004, "same"), (0.99, 1.004, "unclear"),
     (0.98, 1.03, "unclear"), (1.002, 1.004, "faster"), (1.0002, 1.0009, "same"), (0.9992, 0.9999, "same"),
     (1.0002, 1.002, "faster"), (1.0, 1.0, "same")],
)  # fmt: skip
def test_verdicts(low, high, verdict):
    assert judge(math.log(low), math.log(high)) == verdict


def test_unknown_interval_is_unclear_and_the_width_of_same_is_the_callers():
    assert judge(None, None) == "unclear"
    assert judge(-0.02, 0.02) == "unclear"
    assert judge(-0.02, 0.02, same_within=0.03) == "same"


@pytest.mark.parametrize(
    ("degrees", "value"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (5, 2.5706), (10, 2.2281), (29, 2.0452), (100, 1.9840)],
)
def test_students_table(degrees, value):
    assert student_quantile(0.975, degrees) == pytest.approx(value, abs=6e-5)


def estimate_of(ratio):
    return RatioEstimate(ratio=ratio, ci_low=ratio, ci_high=ratio, num_pairs=50, verdict="faster")


def test_processes_count_once_each():
    combined = combine_replicates([estimate_of(ratio) for ratio in (1.10, 1.12, 1.14)])
    logs = [math.log(ratio) for ratio in (1.10, 1.12, 1.14)]
    mean = sum(logs) / 3
    half = 4.30265 * math.sqrt(sum((log - mean) ** 2 for log in logs) / 2 / 3)
    assert ends(combined) == pytest.approx((math.exp(mean), math.exp(mean - half), math.exp(mean + half)), rel=1e-6)
    assert (combined.num_pairs, combined.verdict, combined.inflation) == (150, "faster", 1.0)


def test_two_processes_that_differ_decide_nothing():
    assert combine_replicates([estimate_of(1.01), estimate_of(1.03)]).verdict == "unclear"


def test_one_process_has_no_interval_between_processes():
    alone = combine_replicates([estimate_of(1.2)])
    assert ends(alone) == (pytest.approx(1.2), None, None)
    assert alone.verdict == "unclear"
    with pytest.raises(ValueError, match="no replicate"):
        combine_replicates([])


def test_replicates_cover_a_process_effect_that_pooling_misses():
    lots = random.Random(9)
    covered = pooled = 0
    for _ in range(200):
        processes = []
        for _ in range(5):
            effect = math.exp(lots.gauss(0, 0.01))
            baseline = {index: effect * lots.gauss(1, 0.005) for index in range(15)}
            processes.append((baseline, {index: lots.gauss(1, 0.005) for index in range(15)}))
        combined = combine_replicates([paired_ratio(*pair) for pair in processes])
        covered += combined.ci_low <= 1 <= combined.ci_high
        pool = [{15 * which + index: time for which, pair in enumerate(processes) for index, time in pair[side].items()}
                for side in (0, 1)]  # fmt: skip
        shuffled = lots.sample(range(75), 75)  # pooled as if independent
        naive = paired_ratio(*({place: side[index] for place, index in enumerate(shuffled)} for side in pool))
        pooled += naive.ci_low <= 1 <= naive.ci_high
    assert covered / 200 >= 0.92
    assert pooled / 200 <= 0.75


@pytest.mark.parametrize("tick", [0.0, 1.0, 1e12])
@pytest.mark.parametrize("number", [1, 2, 7, 40])
def test_no_time_or_tick_makes_a_ratio_that_no_file_holds(tick, number):
    for first, second in itertools.product((1e-99, 1.0, 1e11), repeat=2):
        found = paired_ratio(
            {index: first * (1 + index / 9) for index in range(number)},
            {index: second * (1 + index / 7) for index in range(number)},
            tick=tick,
        )
        ends = [end for end in (found.ci_low, found.ratio, found.ci_high) if end is not None]
        assert ends == sorted(ends)
        assert all(1e-30 <= end <= 1e30 for end in ends)
        again = combine_replicates([found, paired_ratio({0: 1.0}, {0: 1.0})])
        assert again.ci_low <= again.ratio <= again.ci_high <= 1e30
