import math
import random

import numpy as np
import pytest

from attnbench.stats.dependence import variance_inflation
from attnbench.stats.ratio import paired_ratio
from attnbench.stats.series import centres, medians, variance_inflations
from attnbench.stats.summary import median_interval


def streams(seed, count, length, memory=0.0):
    lots, found = random.Random(seed), []
    for _ in range(count):
        state, stream = 0.0, []
        for _ in range(length):
            state = memory * state + lots.gauss(0.0, 0.01)
            stream.append(state)
        found.append(stream)
    return found


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("length", [3, 4, 5, 6, 31, 100])
def test_dependence_is_seen_as_one_series_sees_it(memory, length):
    found = streams(4, 40, length, memory)
    table = np.array(found)
    assert variance_inflations(table) == pytest.approx([variance_inflation(one) for one in found])


@pytest.mark.parametrize(("seed", "scaled", "seen"), [(86, 0.496, False), (370, 0.513, True), (33, 0.661, True)])
def test_neighbours_less_alike_than_half_a_standard_error_of_white_noise_are_independent(seed, scaled, seen):
    lots = random.Random(seed)
    stream = [lots.gauss(0.0, 1.0) for _ in range(25)]
    ranks = np.argsort(np.argsort(stream)) - 12.0
    first = (ranks[1:] @ ranks[:-1]) / 24 / (ranks @ ranks / 25) + 1 / 25
    assert first * 5 == pytest.approx(scaled, abs=1e-3)
    assert (variance_inflation(stream) > 1.0) is seen
    assert variance_inflations(np.array([stream])) == pytest.approx([variance_inflation(stream)])


def test_rounds_that_a_row_lacks_at_its_end_say_nothing_of_its_neighbours():
    found = streams(8, 30, 24, 0.8)
    table = np.array([[*one, *[math.nan] * 40] for one in found])
    assert variance_inflations(table) == pytest.approx([variance_inflation(one) for one in found])


def test_medians_of_one_and_two_samples_are_their_middle():
    assert medians(np.array([[3.0, 1.0], [5.0, math.nan]])).tolist() == [2.0, 5.0]
    assert medians(np.array([[7.0]])).tolist() == [7.0]


def test_the_error_is_that_of_the_exact_interval():
    found = streams(5, 30, 60)
    middle, errors = centres(np.array(found), np.zeros(30))
    for one, centre, error in zip(found, middle, errors, strict=True):
        if variance_inflation(one) == 1.0:
            low, high = median_interval(one)
            assert error == pytest.approx((high - low) / 2 / 1.96, rel=1e-4)
        assert centre == pytest.approx(float(np.median(one)))


def test_rounds_without_a_sample_are_left_out():
    (one,) = streams(6, 1, 20)
    gaps = [value for sample in one for value in (sample, math.nan)]
    middle, errors = centres(np.array([gaps, [*one, *[math.nan] * 20]]), np.zeros(2))
    assert middle == pytest.approx([float(np.median(one))] * 2)
    assert errors[0] > 0.0
    assert errors[1] == pytest.approx(centres(np.array([one]), np.zeros(1))[1][0])


def test_few_samples_are_known_by_their_range_and_one_by_nothing():
    middle, errors = centres(np.array([[1.0, 1.2, math.nan], [1.0, math.nan, math.nan], [math.nan] * 3]), np.zeros(3))
    assert middle[:2] == pytest.approx([1.1, 1.0])
    assert errors[0] == pytest.approx(0.1)
    assert np.isnan(errors[1:]).all()
    assert np.isnan(middle[2])


def test_one_sample_each_has_a_centre_and_no_error():
    middle, errors = centres(np.array([[1.5], [2.5]]), np.zeros(2))
    assert middle.tolist() == [1.5, 2.5]
    assert np.isnan(errors).all()


def test_a_coarse_timer_is_averaged_over_as_in_a_ratio():
    lots, tick = random.Random(7), 32e-6
    own = [round(lots.gauss(5.03e-3, 1e-5) / tick) * tick for _ in range(80)]
    base = [round(lots.gauss(5e-3, 1e-5) / tick) * tick for _ in range(80)]
    logs = np.log(np.array([own])) - np.log(np.array([base]))
    corner = tick * math.hypot(1 / 5.03e-3, 1 / 5e-3) / math.sqrt(2)
    (middle,), (error,) = centres(logs, np.array([corner]))
    found = paired_ratio(dict(enumerate(base)), dict(enumerate(own)), tick=tick)
    assert middle == pytest.approx(-math.log(found.ratio), abs=2e-5)
    assert error > 0.0
    equal = centres(np.zeros((1, 50)), np.array([0.01]))
    assert equal[0][0] == pytest.approx(0.0, abs=1e-9)
    assert equal[1][0] > 0.0
