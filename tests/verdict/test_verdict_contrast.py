"""A row against unchanged rows: every number by hand."""

from __future__ import annotations

import math

import pytest

from attnbench.verdict.contrast import clock_change, contrasts_of, share
from attnbench.verdict.levels import Level, Leveled

OWN = 0.005**2
"""Variance of one process, until something measures it."""
ONE = (1, 1)


def median_of(count):
    """Variance of the median of normal values over that of one."""
    return math.pi / 2 / (count + math.pi / 2 - 1)


def row(a, b, *, error=0.001, degrees=3, doubt=0.0, clocks=(None, None), raw=0.0):
    """Levels of the processes of both sides, a dict where not all took part; raw ones lie `raw` higher in B."""
    sides = [
        {
            (0, place, 0): Level(value, error, value + raw * side, clocks[side], degrees)
            for place, value in (values if isinstance(values, dict) else dict(enumerate(values))).items()
        }
        for side, values in enumerate((a, b))
    ]
    return Leveled((sides[0], sides[1]), doubt)


def of_case(rows, flags, files=ONE):
    (found,) = contrasts_of([rows], [flags], files)
    return found


def test_a_row_without_references_is_its_own_change_and_the_machine_is_doubt():
    (found,) = of_case([row([1.0], [1.05], raw=0.02)], [False], files=(2, 4))
    assert found.change == pytest.approx(0.05)
    assert found.relative == pytest.approx(0.07)
    assert (found.references, found.elsewhere, found.has_reference) == ((), False, False)
    assert (found.counts, found.spread, found.degrees, found.blind) == (ONE, None, 0, False)
    assert found.predicted == pytest.approx(OWN + 1e-6)
    assert found.shown == pytest.approx(6 * ((OWN + 1e-6) / 1e-6) ** 2)
    assert found.extra == pytest.approx(0.01**2 * (1 / 2 + 1 / 4))


def test_errors_of_all_processes_are_averaged_as_variances():
    one = row([1.0], [1.0], error=0.003)
    one.sides[0][0, 1, 0] = Level(1.0, 0.001, 1.0, None, 2)
    (found,) = of_case([one], [False])
    sampled = (2 * 0.003**2 + 0.001**2) / 3
    assert found.predicted == pytest.approx(OWN + sampled)
    assert found.shown == pytest.approx((3 + 3 + 2) * ((OWN + sampled) / sampled) ** 2)
    assert found.counts == (2, 1)
    (found,) = of_case([row([1.0] * 2, [1.0] * 4)], [False])
    assert found.per_process == pytest.approx(1 / 2 + 1 / 4)


def test_samples_that_all_agree_show_their_error_for_certain():
    (found,) = of_case([row([1.0], [1.0], error=0.0)], [False])
    assert (found.predicted, found.shown) == (pytest.approx(OWN), math.inf)


def test_the_only_reference_is_taken_out_process_by_process():
    rows = [row([1.0, 1.1], [1.3, 1.4], raw=0.01), row([2.0, 2.1], [2.2, 2.3], raw=0.04)]
    found, reference = of_case(rows, [False, True])
    # Row less reference is -1 in A and -0.9 in B, in each process: no spread is left.
    assert found.change == pytest.approx(0.1)
    assert found.relative == pytest.approx((0.3 + 0.01) - (0.2 + 0.04))
    assert (found.references, found.counts, found.degrees) == ((1,), (2, 2), 2)
    assert found.spread == pytest.approx(0.0, abs=1e-15)
    assert found.predicted == pytest.approx(OWN + 1e-6 + OWN)
    assert found.extra == 0.0
    assert (reference.references, reference.change) == ((), pytest.approx(0.2))


def test_the_spread_is_that_within_the_sides():
    (found,) = of_case([row([1.00, 1.02, 1.04], [1.1, 1.3])], [False])
    assert found.degrees == 3
    assert found.spread == pytest.approx((2 * 0.02**2 + 2 * 0.1**2) / 3)
    assert found.change == pytest.approx(1.2 - 1.02)


def test_one_more_process_on_one_side_is_a_degree_of_freedom():
    (found,) = of_case([row([1.0, 1.2], [1.1])], [False])
    assert (found.degrees, found.spread) == (1, pytest.approx(2 * 0.1**2))


def test_of_several_references_the_median_counts_and_is_less_in_doubt():
    rows = [row([0.0], [0.5]), *(row([0.0], [0.1 + step]) for step in (0.0, 0.001, 0.002))]
    found = of_case(rows, [False, True, True, True])
    assert found[0].change == pytest.approx(0.5 - 0.101)
    assert found[0].predicted == pytest.approx(OWN + 1e-6 + median_of(3) * OWN)
    assert found[0].extra == 0.0, "they agree"
    assert found[1].references == (2, 3), "a reference is held against the others"
    assert found[1].change == pytest.approx(0.1 - 0.1015)


@pytest.mark.parametrize(("apart", "doubted"), [(1.98, False), (2.02, True)])
def test_references_that_disagree_by_twice_what_processes_do_make_doubt(apart, doubted):
    predicted = OWN + 1e-6 + median_of(2) * OWN
    move = apart * math.sqrt(predicted)
    found, *_ = of_case([row([0.0], [0.0]), row([0.0], [0.1]), row([0.0], [0.1 + 2 * move])], [False, True, True])
    # Without either of the two the median moves by half of what lies between them.
    assert found.predicted == pytest.approx(predicted)
    assert found.extra == pytest.approx(move**2 if doubted else 0.0)


def test_of_three_references_the_one_without_which_the_median_moves_most_counts():
    found, *_ = of_case([row([0.0], [0.0]), *(row([0.0], [one]) for one in (0.0, 0.01, 0.11))], [False, *[True] * 3])
    assert found.extra == pytest.approx((0.06 - 0.01) ** 2), "without the first, 0.01 and 0.11 are left"
    assert found.change == pytest.approx(-0.01)


def test_a_process_that_a_reference_missed_is_held_against_the_others():
    rows = [row([1.0, 1.0], [1.0, 1.0]), row([0.0, 0.2], [0.4, 0.4]), row({0: 0.5}, [0.7, 1.3])]
    found, *_ = of_case(rows, [False, True, True])
    # Middles are 0.25 and 0.75; the second process of A has the first reference alone.
    assert found.counts == (2, 2)
    a = [1.0 - (-0.25 - 0.25) / 2, 1.0 + 0.05]
    b = [1.0 - (0.15 - 0.05) / 2, 1.0 - (0.15 + 0.55) / 2]
    assert found.change == pytest.approx(sum(b) / 2 - sum(a) / 2)


def test_a_process_without_any_reference_is_left_out():
    found, _ = of_case([row([1.0, 9.0], [1.5, 9.0]), row({0: 0.0}, {0: 0.2})], [False, True])
    assert (found.counts, found.change) == (ONE, pytest.approx(0.3))


def test_where_no_process_has_both_the_means_are_compared():
    missed = row({5: 0.3}, {0: 0.5}, raw=9.0), row({6: 0.1}, {0: 0.9})
    found, *_ = of_case([row({0: 1.0, 1: 2.0}, {0: 4.0}), *missed], [False, True, True])
    assert found.counts == ONE
    # Middles are 0.4 and 0.5: the references are off by -0.1 and -0.4 in A, by 0.1 and 0.4 in B.
    assert found.change == pytest.approx((4.0 - 0.25) - (1.5 + 0.25))


def test_a_row_or_reference_without_a_level_on_a_side_is_none():
    first, second, third = of_case([row([1.0], [1.1]), row([1.0], []), row([2.0], [2.0])], [False, True, True])
    assert second is None
    assert (first.references, third.references) == ((2,), ())


@pytest.mark.parametrize("there", [4, 5])
def test_five_unchanged_rows_of_other_cases_stand_in(there):
    shifts = (0.10, 0.11, 0.12, 0.14, 0.18)[:there]
    cases = [
        [row([0.0], [0.5], raw=0.01), row([0.0], [0.6])],
        *([row([1.0], [1.0 + one], raw=0.03), row([1.0], [9.0])] for one in shifts),
    ]
    found = contrasts_of(cases, [[False, False], *[[True, False]] * there], ONE)[0][0]
    assert (found.references, found.elsewhere) == ((), there == 5)
    assert found.has_reference is (there == 5)
    if there == 5:
        assert found.change == pytest.approx(0.5 - 0.12)
        assert found.relative == pytest.approx(0.51 - 0.15)
        assert found.predicted == pytest.approx(OWN + 1e-6)
        # Deviations from the median: 0.02, 0.01, 0, 0.02, 0.06.
        assert found.extra == pytest.approx(median_of(5) * (0.02 / 0.6745) ** 2)
    else:
        assert (found.change, found.extra) == (pytest.approx(0.5), pytest.approx(2 * 0.01**2))


def test_a_case_is_none_of_the_other_cases():
    """Its only unchanged row is judged by the five of others, not by itself."""
    cases = [
        [row([0.0], [0.9])],
        *([row([0.0], [one])] for one in (0.01, 0.02, 0.03, 0.04)),
        [row([0.0], []), row([0.0], [0.05])],
    ]
    found = contrasts_of(cases, [*[[True]] * 5, [True, True]], ONE)
    assert found[0][0].change == pytest.approx(0.9 - 0.03)
    assert found[1][0].change == pytest.approx(0.01 - 0.04), "of 0.02, 0.03, 0.04, 0.05 and 0.9"
    assert found[5][1].change == pytest.approx(0.05 - 0.03), "of 0.01 to 0.04 and 0.9"


def test_doubt_of_the_clocks_exponent_counts_by_how_far_the_clocks_are_apart():
    clocks = (7.0, 7.1)
    found, alone = of_case(
        [row([0.0], [0.0], doubt=0.3, clocks=clocks), row([0.0], [0.0], doubt=0.2, clocks=(7.0, 6.8))], [False, True]
    )
    assert found.extra == pytest.approx((0.3 * 0.1) ** 2 + (0.2 * 0.2) ** 2)
    assert alone.extra == pytest.approx((0.2 * 0.2) ** 2 + 2 * 0.01**2)
    (unread,) = of_case([row([0.0], [0.0], doubt=0.3)], [False])
    assert unread.extra == pytest.approx(2 * 0.01**2)


def test_the_clock_is_not_known_where_one_process_did_not_read_it():
    one = row([0.0, 0.0], [0.0], clocks=(7.0, 7.3))
    assert clock_change(one) == pytest.approx(0.3)
    one.sides[0][0, 1, 0].clock = 7.2
    assert clock_change(one) == pytest.approx(0.2)
    one.sides[0][0, 1, 0].clock = None
    assert clock_change(one) is None
    assert clock_change(row([0.0], [0.0])) is None


def test_a_process_too_short_to_know_its_error_leaves_it_to_other_processes():
    one = row([1.0, 1.1], [1.2])
    one.sides[1][0, 0, 0].error = None
    (found,) = of_case([one], [False])
    assert (found.blind, found.degrees, found.shown, found.is_hopeless) == (True, 1, 1.0, False)
    (alone,) = of_case([row([1.0], [1.2], error=None)], [False])
    assert (alone.blind, alone.is_hopeless, alone.predicted, alone.shown) == (True, True, pytest.approx(OWN), math.inf)
    (known,) = of_case([row([1.0], [1.2])], [False])
    assert not known.is_hopeless


def test_a_change_beyond_any_measure_is_still_a_number():
    assert share(0.02) == pytest.approx(math.exp(0.02) - 1)
    assert share(19.0) == pytest.approx(math.expm1(19.0))
    assert share(1e6) == share(21.0) == math.expm1(20.0)
