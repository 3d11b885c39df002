import math
import random
import statistics

import pytest

from attnbench.stats import moderated
from attnbench.stats.replicates import student_quantile


@pytest.mark.parametrize(
    ("value", "first", "second"),
    [(1.0, -0.5772156649, math.pi**2 / 6), (0.5, -1.9635100260, math.pi**2 / 2), (10.0, 2.2517525890, 0.1051663357)],
)
def test_the_derivatives_of_log_gamma(value, first, second):
    assert moderated.digamma(value) == pytest.approx(first, abs=1e-8)
    assert moderated.trigamma(value) == pytest.approx(second, abs=1e-7)


def chi_squares(lots, count, degrees):
    return [sum(lots.gauss(0, 1) ** 2 for _ in range(degrees)) / degrees for _ in range(count)]


def test_rows_that_are_alike_share_one_spread():
    scale, degrees = moderated.prior_of([2.0 * one for one in chi_squares(random.Random(1), 400, 4)], [4] * 400)
    assert scale == pytest.approx(2.0, rel=0.05)
    assert degrees > 100


def test_rows_that_differ_are_drawn_less():
    lots = random.Random(2)
    unlike = [one / other for one, other in zip(chi_squares(lots, 3000, 4), chi_squares(lots, 3000, 6), strict=True)]
    scale, degrees = moderated.prior_of(unlike, [4] * 3000)
    assert scale == pytest.approx(1.0, rel=0.1)
    assert degrees == pytest.approx(6.0, rel=0.25)


def test_three_rows_are_a_grid():
    assert moderated.prior_of([2.0, 2.0, 2.0], [2, 3, 1]) == (pytest.approx(2.0), 6.0)
    assert moderated.prior_of([0.0, 0.0, 0.0], [2, 2, 2]) == (1e-4, 6.0)


@pytest.mark.parametrize("apart", [1.4335, 4.605])
def test_rows_that_differ_by_more_than_chance_have_the_degrees_of_that(apart):
    """Two degrees each: the logarithm of such a multiple has the mean -0.5772 and the variance pi^2 / 6."""
    scale, degrees = moderated.prior_of([math.exp(one) for one in (-apart, 0.0, apart)], [2, 2, 2])
    beyond = apart**2 - math.pi**2 / 6
    assert moderated.trigamma(degrees / 2) == pytest.approx(beyond)
    assert scale == pytest.approx(math.exp(0.5772156649 + moderated.digamma(degrees / 2)) / (degrees / 2))
    assert degrees < 6.0


def test_rows_that_differ_by_chance_are_pooled():
    apart = math.sqrt(math.pi**2 / 6 + 0.38)  # beyond chance by less than six degrees are known to, trigamma(3)
    multiples = [math.exp(one) for one in (-apart, 0.0, apart)]
    assert moderated.prior_of(multiples, [2, 2, 2]) == (pytest.approx(sum(multiples) / 3), 6.0)


def test_two_rows_are_no_grid_and_equal_figures_no_proof():
    assert moderated.prior_of([0.1, 0.2], [2, 2]) == (1.0, 4.0)
    scale, _ = moderated.prior_of([0.0] * 10, [2] * 10)
    assert scale > 0.0


def test_one_draw_in_four_may_be_anything():
    lots = random.Random(3)
    squares = [9.0 * lots.gauss(0, 1) ** 2 for _ in range(5000)]
    assert moderated.trimmed_scale(squares) == pytest.approx(9.0, rel=0.06)
    odd = squares[:4000] + [1e6] * 1000
    assert 9.0 < moderated.trimmed_scale(odd) < 18.0
    assert moderated.trimmed_scale([4.0, 16.0]) == statistics.fmean([4.0, 16.0])


def test_intervals_that_hold_together():
    assert moderated.each(0.95, 1) == 0.95
    assert moderated.each(0.95, 60) ** 60 == pytest.approx(0.95)
    assert moderated.quantile(0.975, 7.9) == student_quantile(0.975, 7)
    assert moderated.quantile(0.975, 1e9) == student_quantile(0.975, moderated.MOST_DEGREES)


def test_the_degrees_of_the_robust_scale():
    lots = random.Random(4)
    for count in (20, 200):
        scales = [moderated.trimmed_scale([lots.gauss(0, 1) ** 2 for _ in range(count)]) for _ in range(2000)]
        degrees = 2.0 * statistics.fmean(scales) ** 2 / statistics.variance(scales)
        assert degrees / count == pytest.approx(moderated.KEPT_DEGREES, abs=0.06)
