"""Rows that moved together, and all of them: moves of groups and the shift of a run, by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from test_verdict_judge import contrast

from attnbench.stats.moderated import quantile
from attnbench.stats.signed_rank import common_shift
from attnbench.verdict.levels import Level, Leveled
from attnbench.verdict.shift import shift_of_all
from attnbench.verdict.together import Move, against_yardsticks, move_of, moves_of, shift_of, steady

# ── groups of rows ─────────────────────────────────────────────────────────────────────────────────

TWELVE = [0.02 + 0.001 * step for step in range(-5, 7)]


def test_a_group_moves_by_the_common_shift_of_its_cases():
    found = move_of([[one, one - 0.001, one + 0.5] for one in TWELVE] + [[]], groups=2)
    centre, (low, high) = common_shift(TWELVE, 0.995)
    assert (found.change, found.low, found.high, found.cases) == (centre, low, high, 12)
    assert move_of([[0.1]]) is None
    same = move_of([[0.02]] * 12)
    least = math.log1p(1e-3)
    assert (same.low, same.high) == pytest.approx((0.02 - least, 0.02 + least)), "narrower is not to be had"


def test_too_few_cases_for_ranks_are_taken_for_normal():
    found = move_of([[0.01], [0.03]])
    reach = quantile(0.995, 1) * math.sqrt(2e-4) / math.sqrt(2)
    assert (found.change, found.cases) == (pytest.approx(0.02), 2)
    assert (found.low, found.high) == pytest.approx((0.02 - reach, 0.02 + reach))


def test_three_cases_have_two_degrees():
    found = move_of([[0.01], [0.02], [0.03]])
    reach = quantile(0.995, 2) * 0.01 / math.sqrt(3)
    assert (found.low, found.high) == pytest.approx((0.02 - reach, 0.02 + reach))


@pytest.mark.parametrize(
    ("change", "low", "high", "shown"),
    [
        (0.02, 0.001, 0.03, True),
        (-0.02, -0.03, -0.001, True),
        (0.02, 0.0, 0.03, False),
        (-0.02, -0.03, 0.0, False),
        (math.log1p(0.01), 0.001, 0.03, False),
    ],
)
def test_a_move_is_shown_beyond_chance_and_one_per_cent(change, low, high, shown):
    assert Move(change, low, high, 9).is_shown is shown


def test_all_rows_move_where_each_backend_went_half_the_way():
    def moves(of_b):
        rows = [[contrast(0.02 + shift), contrast(of_b + shift), None] for shift in (-0.001, 0.0, 0.001, 0.002)]
        return moves_of(rows, [["a", "b", "c"]] * 4)

    # The whole is the median of a case's rows: between the two.
    assert set(moves(0.02)) == {"a", "b", None}
    assert set(moves(0.0070)) == {"a", "b", None}
    assert set(moves(0.0060)) == {"a", "b"}
    bare = [[contrast(0.02, references=()), contrast(0.02)]] * 4
    found = moves_of(bare, [["a", None]] * 4)
    assert found == {}, "a yardstick, or a row held against nothing, is of no group"


@pytest.mark.parametrize(("apart", "shown"), [(0.01, False), (0.0001, True)])
def test_a_group_that_lies_apart_from_process_to_process_is_not_shown_to_have_moved(apart, shown):
    """Twelve cases agree on 2 %, since a process moves all of them alike; three processes a side do not."""

    def row(shift):
        offsets = {(0, number, 0): number * apart for number in (-1, 0, 1)}
        sides = offsets, {place: offset + 0.02 + shift for place, offset in offsets.items()}
        return contrast(0.02 + shift, counts=(3, 3), spread=1e-6, degrees=4, processes=sides)

    moves = moves_of([[row(0.0001 * case)] for case in range(12)], [["a"]] * 12)
    assert moves["a"].is_shown is shown
    assert (moves["a"].high - moves["a"].low > 0.04) is not shown


def leveled(shift, raw=None):
    return Leveled(
        ({(0, 0, 0): Level(1.0, 0.001, 2.0, None)}, {(0, 0, 0): Level(1.0 + shift, 0.001, 2.0 + (raw or shift), None)}),
        0.0,
    )


def test_a_row_without_a_level_on_a_side_has_no_shift():
    one = leveled(0.02, raw=0.03)
    assert (shift_of(one), shift_of(one, raw=True)) == (pytest.approx(0.02), pytest.approx(0.03))
    for side in (0, 1):
        lacking = leveled(0.02)
        lacking.sides[side].clear()
        assert math.isnan(shift_of(lacking))


def test_yardsticks_are_what_rows_are_held_against_and_their_difference_is_doubt():
    shifts = (0.018, 0.02, 0.021, 0.024)
    cases = [[leveled(0.05 + one), leveled(9.0), leveled(0.01), leveled(0.03)] for one in shifts]
    names = [["a", "b", None, None]] * 4
    found = against_yardsticks(cases, names, [[True, False, True, True]] * 4)
    first, second = (move_of([[0.05 + one - yard] for one in shifts]) for yard in (0.01, 0.03))
    assert found.change == pytest.approx((first.change + second.change) / 2)
    assert (found.low, found.high) == pytest.approx((second.low, first.high))
    assert found.cases == 4
    beside = against_yardsticks([*cases, [leveled(9.0)]], [*names, ["a"]], [*[[True, False, True, True]] * 4, [True]])
    assert beside == found, "a case without yardsticks tells nothing"
    assert against_yardsticks(cases, [["a", "b", "c", "d"]] * 4, [[True] * 4] * 4) is None
    assert against_yardsticks(cases[:1], names[:1], [[True] * 4]) is None


def test_unchanged_rows_that_moved_against_the_yardsticks_are_no_references():
    names, flags = [["a", "b", None]] * 6, [[True, False, True]] * 6

    def cases(shift):
        return [[leveled(shift + one), leveled(9.0), leveled(0.0)] for one in (0.001, 0.002, 0.0, -0.001, 0.001, 0.003)]

    assert steady(cases(0.05), names, flags) == [[False, False, True]] * 6
    assert steady(cases(0.0), names, flags) == flags


# ── all rows ───────────────────────────────────────────────────────────────────────────────────────


def shift(rows, yardsticks=None, *, cases=8, files=(1, 1), verdicts="unclear", change=None):
    """Of so many cases with rows of these shifts (level, raw), by backend, and yardsticks by name."""
    yardsticks = yardsticks or {}
    found = [[leveled(*one) for one in (*rows.values(), *((x, x) for x in yardsticks.values()))] for _ in range(cases)]
    names = [[*rows, *[None] * len(yardsticks)] for _ in range(cases)]
    judged = [
        [SimpleNamespace(change=level if change is None else change, verdict=verdicts) for level, _ in rows.values()]
        + [SimpleNamespace(change=9.0, verdict="unclear")] * len(yardsticks)
        for _ in range(cases)
    ]
    return shift_of_all(found, names, judged, files, [list(yardsticks)] * cases)


def test_rows_that_left_the_yardsticks_behind_are_the_code():
    found = shift({"a": (0.05, 0.06), "b": (0.05, 0.06)}, {"matmul": 0.01, "copy": 0.01})
    assert (found.cause, found.shown, found.clock_change) == ("code", True, None)
    assert found.change == pytest.approx(math.expm1(0.04))
    least = math.log1p(1e-3)
    assert (found.low, found.high) == pytest.approx((math.expm1(0.04 - least), math.expm1(0.04 + least)))
    assert found.time_change == pytest.approx(math.expm1(0.06))
    assert found.yardsticks == pytest.approx({"matmul": math.expm1(0.01), "copy": math.expm1(0.01)})
    one = shift({"a": (0.05, 0.06), "b": (0.011, 0.011)}, {"matmul": 0.01, "copy": 0.01})
    assert one is None or one.cause != "code", "one backend is not all rows"


def test_rows_that_are_all_called_slower_are_the_code_too():
    # No common shift against the yardsticks is shown: there is one case.
    rows = {"a": (0.05, 0.07), "b": (0.05, 0.07)}
    found = shift(rows, {"matmul": 0.0}, cases=1, verdicts="slower")
    assert (found.cause, found.change, found.low) == ("code", pytest.approx(math.expm1(0.05)), None)
    assert found.shown
    assert shift(rows, {"matmul": 0.0}, cases=1).cause == "unknown"
    apart = {"a": (0.1, 0.1), "b": (0.01, 0.01)}
    assert shift(apart, {"matmul": 0.0}, cases=1, verdicts="slower") is None, "the one hardly moved beside the other"
    assert shift(rows, cases=1, verdicts="slower").cause == "unknown", "nothing to hold on to"


def test_rows_and_yardsticks_that_moved_together_are_the_machine():
    found = shift({"a": (0.03, 0.03), "b": (0.03, 0.03)}, {"matmul": 0.02, "copy": 0.03})
    assert (found.cause, found.change, found.shown) == ("machine", pytest.approx(math.expm1(0.03)), True)
    assert shift({"a": (0.03, 0.03)}, {"matmul": 0.0151, "copy": 0.03}).cause == "machine"
    assert shift({"a": (0.03, 0.03)}, {"matmul": 0.0149, "copy": 0.03}).cause == "unknown"
    assert shift({"a": (-0.03, -0.03)}, {"matmul": -0.03}).cause == "machine"


def test_a_shift_that_is_gone_at_one_clock_is_the_machine():
    assert shift({"a": (0.014, 0.03)}).cause == "machine"
    assert shift({"a": (0.016, 0.03)}).cause == "unknown"


@pytest.mark.parametrize(("files", "runs"), [((1, 1), 2.0), ((2, 4), 0.75)])
def test_a_shift_of_the_times_is_shown_beyond_what_runs_differ_by(files, runs):
    limit = 1.96 * 0.01 * math.sqrt(runs)
    assert not shift({"a": (limit - 1e-6, limit - 1e-6)}, files=files).shown
    assert shift({"a": (limit + 1e-6, limit + 1e-6)}, files=files).shown


def test_a_shift_below_one_per_cent_is_not_said():
    least = math.log1p(0.01)
    assert shift({"a": (0.0, least - 1e-9)}) is None
    assert shift({"a": (0.0, least + 1e-9)}) is not None


def test_a_shift_is_common_where_nine_cases_in_ten_and_each_backend_went_along():
    def cases(shifts, of_b=0.03):
        found = [[leveled(one), leveled(of_b if one > 0 else one)] for one in shifts]
        judged = [[SimpleNamespace(change=None, verdict="unclear")] * 2] * len(shifts)
        return shift_of_all(found, [["a", "b"]] * len(shifts), judged, (1, 1), [[]] * len(shifts))

    assert cases([0.03] * 9 + [-0.01]).change == pytest.approx(math.expm1(0.03))
    assert cases([0.03] * 8 + [-0.01] * 2) is None
    assert cases([0.03] * 10, of_b=0.0043) is not None, "a quarter of 0.0165, the median of all"
    assert cases([0.03] * 10, of_b=0.0042) is None
