"""The figures behind verdicts, computed by hand."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace

import numpy
import pytest
from test_verdict_diff import make_time

from attnbench.verdict.contrast import _of_median, _Pool
from attnbench.verdict.levels import IMPORTED_ERROR, Level, Leveled, _imported, _imported_error
from attnbench.verdict.noise import Noise
from attnbench.verdict.notes import _of
from attnbench.verdict.placement import LEAST, PlacementError

ABSENT = dict.fromkeys(("median_ms", "mean_ms", "min_ms", "std_ms"))


def test_the_variance_of_a_median_is_that_of_normal_values():
    assert _of_median(1) == pytest.approx(1.0)
    lots = numpy.random.default_rng(1)
    for count in (5, 25):
        drawn = numpy.median(lots.standard_normal((20_000, count)), axis=1).var()
        assert _of_median(count) == pytest.approx(drawn, rel=0.05)


def test_what_rows_of_other_cases_say_of_the_machine():
    def case(shift):
        sides = tuple({(0, 0, 0): Level(at, 0.001, at, None)} for at in (1.0, 1.0 + shift))
        return [Leveled(sides, 0.0)]

    shifts = [0.03, 0.01, 0.05, 0.02, 0.04, 0.9]
    pool = _Pool([case(one) for one in shifts], [[True]] * 6)
    shift, raw, variance = pool.elsewhere(5)
    assert shift == pytest.approx(0.03)
    assert raw == pytest.approx(0.03)
    assert variance == pytest.approx((math.pi / 2) / (5 + math.pi / 2 - 1) * (0.01 / 0.6745) ** 2)
    assert _Pool([case(one) for one in shifts[1:]], [[True]] * 5).elsewhere(4) is None, "four others are too few"


@pytest.mark.parametrize(
    ("parts", "own", "both"),
    [
        ((1.0, 6.0, 2.0), 10.0, 49 / (1 / 10 + 36 / 2)),
        ((6.0, 1.0, 1.0), 10.0, 10.0),  # no more than either gives, and what was assumed and seen together
        ((5.0, 5.0, 4.0), 3.0, 100 / (25 / 3 + 25 / 4)),
        ((0.0, 0.0, 0.0), 7.0, 7.0),
    ],
)
def test_degrees_of_freedom_of_what_was_assumed_and_seen(parts, own, both):
    noise = Noise([], [])
    noise._parts = parts
    assert noise._degrees(own) == pytest.approx(both)


def test_a_time_without_samples_is_known_by_what_the_file_has():
    time = make_time(2.0, SimpleNamespace(gauss=lambda middle, spread: middle), samples=1)
    bare = dataclasses.replace(time, samples_ms=(), rounds=(), **ABSENT)
    error = {
        "spread": dataclasses.replace(bare, mean_ms=2.0, std_ms=0.4, num_samples=16),
        "least": dataclasses.replace(bare, mean_ms=2.0, min_ms=1.6),
        "sure": dataclasses.replace(bare, mean_ms=2.0, std_ms=0.001, num_samples=16),
        "nothing": dataclasses.replace(bare, median_ms=2.0),
    }
    found = {name: _imported_error(one) for name, one in error.items()}
    assert found == pytest.approx(
        {"spread": 0.2 / 4, "least": 0.2 / 4, "sure": IMPORTED_ERROR, "nothing": IMPORTED_ERROR}
    )


@pytest.mark.parametrize(
    ("here", "beside", "level"),
    [
        ({"median_ms": 2.0, "mean_ms": 3.0}, {"median_ms": 4.0}, 2.0),
        ({"median_ms": 2.0, "mean_ms": 3.0}, {"mean_ms": 4.0}, 3.0),  # not a median against a mean
        ({"mean_ms": 3.0}, {"mean_ms": 4.0}, 3.0),
        ({"median_ms": 2.0}, {"mean_ms": 4.0}, 2.0),
    ],
)
def test_medians_are_compared_where_all_have_one_and_else_means(here, beside, level):
    time = make_time(2.0, SimpleNamespace(gauss=lambda middle, spread: middle), samples=1)
    bare = dataclasses.replace(time, samples_ms=(), rounds=(), **ABSENT)
    records = [SimpleNamespace(time=dataclasses.replace(bare, **one)) for one in (here, beside)]
    row = SimpleNamespace(timed=lambda side: {0: records[side]})
    assert _imported(row, records[0]).raw == pytest.approx(math.log(level))


def test_means_are_compared_too_where_the_other_side_has_no_median():
    time = make_time(2.0, SimpleNamespace(gauss=lambda middle, spread: middle), samples=1)
    bare = dataclasses.replace(time, samples_ms=(), rounds=(), **ABSENT)
    means, both = ({"mean_ms": 3.0}, {"median_ms": 4.0, "mean_ms": 5.0})
    for a, b in ((means, both), (both, means)):
        records = [SimpleNamespace(time=dataclasses.replace(bare, **one)) for one in (a, b)]
        row = SimpleNamespace(timed=lambda side, records=records: {0: records[side]})
        assert _imported(row, records[[a, b].index(both)]).raw == pytest.approx(math.log(5.0))


def placed(quiet, changed, degrees=0):
    """Limits of rows that stayed, by their changes, and of one of so many that did not."""
    rows = [SimpleNamespace(change=one, degrees=degrees, has_reference=True) for one in [*quiet, *[0.5] * changed]]
    flags = [True] * len(quiet) + [False] * changed
    found = PlacementError([rows], [flags], [["a"] * len(rows)])
    return [found.of(one) for one in rows]


def test_a_change_as_large_as_chance_moved_unchanged_rows_is_not_shown():
    limits = placed([0.03, -0.02, *[0.001] * 10], changed=6)
    among = (1 / 0.008 - 1) ** (1 / 3)
    assert limits[0] == pytest.approx(0.02 * among), "held against the others"
    assert limits[1:12] == pytest.approx([0.03 * among] * 11)
    assert limits[12:] == pytest.approx([0.03 * (6 / 12 * (1 / 0.012 - 1)) ** (1 / 3)] * 6)


def test_few_unchanged_rows_do_not_show_how_far_chance_moves_one():
    assert placed([0.0] * 11, changed=6) == [LEAST] * 17
    assert placed([0.0] * 10, changed=6) == pytest.approx([0.03 * 16 ** (1 / 3)] * 16)
    assert placed([0.03] * 12, changed=6, degrees=4) == [0.0] * 18, "replicates show it themselves"


def test_rows_are_counted_in_words():
    assert [_of(1, 1), _of(2, 2), _of(1, 2)] == ["the row", "all rows", "1 of 2 rows"]
