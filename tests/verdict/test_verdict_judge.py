"""From contrasts to verdicts: learned noise, the verdict of a row, the counts of a diff; every number by hand."""

from __future__ import annotations

import itertools
import math
from statistics import NormalDist
from types import SimpleNamespace

import pytest

from attnbench.record import Status
from attnbench.stats.moderated import quantile
from attnbench.verdict.change import Diff, Turned
from attnbench.verdict.contrast import Contrast
from attnbench.verdict.judge import _belongs, _confidence, _shown, _verdict, judge
from attnbench.verdict.levels import Level, Leveled
from attnbench.verdict.noise import Noise, _independent
from attnbench.verdict.together import Move

PREDICTED = 0.005**2


def contrast(change=0.0, **changed):
    """A row beside two references, one process a side."""
    values = {
        "row": None,
        "references": (1, 2),
        "elsewhere": False,
        "change": change,
        "relative": change,
        "counts": (1, 1),
        "spread": None,
        "degrees": 0,
        "predicted": PREDICTED,
        "shown": math.inf,
        "extra": 0.0,
        "blind": False,
    }
    return Contrast(**(values | changed))


def normal_mean(squares):
    """Mean square of normal draws from the smallest three quarters of their squares."""
    kept = sorted(squares)[: math.ceil(0.75 * len(squares))]
    share = len(kept) / len(squares)
    edge = NormalDist().inv_cdf((1 + share) / 2)
    return sum(kept) / len(kept) / (1 - 2 * edge * NormalDist().pdf(edge) / share)


# ── noise ──────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_known_is_the_declared_spread_with_thirty_degrees():
    one = contrast(extra=1e-6)
    assert Noise([[one]], [[False]]).of(one) == pytest.approx((2 * PREDICTED + 1e-6, 30.0))


def test_variance_is_never_below_what_is_told_apart():
    one = contrast(predicted=1e-12)
    assert Noise([[one]], [[False]]).of(one)[0] == pytest.approx(1e-3**2)


def test_few_samples_of_a_rows_own_leave_few_degrees():
    one = contrast(shown=2.0)
    assert Noise([[one]], [[False]]).of(one)[1] == pytest.approx(1 / (1 / 30 + 1 / 2))


def test_replicates_of_fewer_than_three_rows_are_drawn_to_what_was_declared():
    one = contrast(counts=(2, 2), spread=4 * PREDICTED, degrees=2)
    bare = contrast(counts=(2, 1), extra=1e-5)
    noise = Noise([[one, bare, None]], [[False, False, False]])
    assert noise.replicated
    assert (noise.scale, noise.degrees) == (1.0, 8.0)
    assert noise.of(one) == pytest.approx(((8 * 1 + 2 * 4) / 10 * PREDICTED * 1, 10.0))
    assert noise.of(bare) == pytest.approx((PREDICTED * 1.5 + 1e-5, 8.0)), "a row without a spread has the grid's"


def test_replicates_that_are_alike_teach_all_rows_their_spread():
    rows = [contrast(counts=(2, 2), spread=9 * PREDICTED, degrees=2) for _ in range(4)]
    noise = Noise([rows], [[False] * 4])
    assert noise.degrees == pytest.approx(4 + 8)
    assert noise.scale == pytest.approx((4 + 8 * 9) / 12)
    multiple = (12 * noise.scale + 2 * 9) / 14
    assert noise.of(rows[0]) == pytest.approx((multiple * PREDICTED, 14.0))
    assert noise.of(contrast(counts=(2, 2)))[0] == pytest.approx(noise.scale * PREDICTED)
    quiet = Noise([[contrast(counts=(2, 2), spread=0.01 * PREDICTED, degrees=2) for _ in range(4)]], [[False] * 4])
    assert quiet.scale < 1.0
    assert quiet.of(contrast(counts=(2, 2)))[0] == pytest.approx(PREDICTED), "one process is not known to be quieter"


def test_a_row_that_knows_no_error_has_its_processes_alone():
    blind = contrast(counts=(2, 3), spread=1e-4, degrees=3, blind=True, extra=1e-7)
    known = contrast(counts=(2, 3), spread=PREDICTED, degrees=3)
    noise = Noise([[blind, known]], [[False, False]])
    assert noise.of(blind) == pytest.approx((1e-4 * (1 / 2 + 1 / 3) + 1e-7, 3.0))
    assert not Noise([[blind]], [[False]]).replicated


def test_unchanged_rows_widen_all_by_what_they_changed():
    quiet = [contrast(one, extra=0.0) for one in (0.03, -0.04, 0.02, 0.05, 0.3)]
    other = contrast(0.1)
    noise = Noise([[*quiet, other]], [[True] * 5 + [False]])
    seen = normal_mean([one.change**2 / (2 * PREDICTED) for one in quiet])
    weight, freedom = 5 / seen, 0.55 * 4
    factor = (weight + freedom * seen) / (weight + freedom)
    assert noise.factor == pytest.approx(factor)
    variance, degrees = noise.of(other)
    assert variance == pytest.approx(2 * PREDICTED * factor)
    both = (weight + freedom * seen) ** 2 / (weight**2 / 30 + (freedom * seen) ** 2 / freedom)
    assert degrees == pytest.approx(min(both, 30.0))


def test_unchanged_rows_show_less_noise_only_where_nothing_else_measured_it():
    still = [contrast(0.0) for _ in range(5)]
    assert Noise([still], [[True] * 5]).factor == pytest.approx(5 / (5 + 0.55 * 4))
    assert Noise([still], [[False] * 5]).factor == 1.0
    elsewhere = [contrast(0.0, references=(), elsewhere=True) for _ in range(5)]
    assert Noise([elsewhere], [[True] * 5]).factor == 1.0
    measured = [contrast(0.0, counts=(2, 2), spread=PREDICTED, degrees=2) for _ in range(5)]
    assert Noise([measured], [[True] * 5]).factor == 1.0
    loud = [contrast(0.1, counts=(2, 2), spread=PREDICTED, degrees=2) for _ in range(5)]
    assert Noise([loud], [[True] * 5]).factor > 10.0
    hopeless = [contrast(0.1, blind=True) for _ in range(5)]
    assert Noise([hopeless], [[True] * 5]).factor == 1.0
    bare = [contrast(0.1, references=()) for _ in range(5)]
    assert Noise([bare], [[True] * 5]).factor == 1.0


def test_unchanged_rows_of_a_case_are_one_fewer_than_they_are():
    elsewhere = contrast(references=(), elsewhere=True)
    cases = [[contrast(), contrast(), contrast(), None], [contrast()], [elsewhere], [contrast(references=())]]
    flags = [[True, True, True, True], [True], [True], [True]]
    assert _independent(cases, flags) == pytest.approx(0.55 * (2 + 0 + 1 + 0))
    assert _independent(cases, [[True, True, False, True], [False], [True], [True]]) == pytest.approx(0.55 * 2)


# ── one row ────────────────────────────────────────────────────────────────────────────────────────


class Known:
    """A noise of one variance, and a placement."""

    def __init__(self, error=0.004, degrees=10, placement=0.0):
        self.error, self.degrees, self.placement = error, degrees, placement

    def of(self, one):
        return (self.error**2, self.degrees) if one else None


def verdict(change, *, error=0.004, placement=0.0, moves=(), same_within=0.03, confidence=0.98, **changed):
    at = SimpleNamespace(of=lambda one: placement)
    return _verdict(contrast(change, **changed), Known(error), confidence, at, list(moves), same_within)


def test_a_row_is_called_where_its_interval_leaves_out_nothing_and_it_moved_enough():
    reach = quantile(0.99, 10) * 0.004
    assert quantile(0.99, 10) == pytest.approx(2.764, abs=1e-3)
    shown = verdict(reach + 1e-6)
    assert (shown.verdict, shown.low, shown.high) == ("slower", pytest.approx(1e-6), pytest.approx(2 * reach + 1e-6))
    assert verdict(-reach - 1e-6).verdict == "faster"
    assert verdict(reach - 1e-6).verdict == "same"
    assert verdict(reach - 1e-6, same_within=0.01).verdict == "unclear"
    least = math.log1p(0.005)
    assert verdict(least + 1e-6, error=1e-4).verdict == "slower"
    assert verdict(least - 1e-6, error=1e-4).verdict == "same", "half a per cent is no change"
    assert verdict(0.03 + 1e-6, error=1e-4, placement=0.03, same_within=0.2).verdict == "slower"
    assert verdict(0.03 - 1e-6, error=1e-4, placement=0.03, same_within=0.2).verdict == "same"


def test_the_smallest_change_that_is_seen_is_beyond_all_limits_by_what_power_needs():
    power = quantile(0.95, 10)
    assert verdict(0.0).smallest == pytest.approx((quantile(0.99, 10) + power) * 0.004)
    assert verdict(0.0, error=1e-4).smallest == pytest.approx(math.log1p(0.005) + power * 1e-4)
    assert verdict(0.0, error=1e-4, placement=0.04).smallest == pytest.approx(0.04 + power * 1e-4)
    assert verdict(0.0, placement=0.04).placement == 0.04


def test_the_same_rules_out_what_is_beyond_the_limit():
    power = quantile(0.95, 10) * 0.004
    assert verdict(0.01, same_within=0.01 + power + 1e-9).verdict == "same"
    assert verdict(0.01, same_within=0.01 + power - 1e-9).verdict == "unclear"
    assert verdict(0.0, relative=0.05).verdict == "unclear", "the time against the references' says otherwise"
    assert verdict(0.0, relative=-0.05).verdict == "unclear"
    assert verdict(0.0, relative=0.05, references=()).verdict == "same", "there is nothing it could be against"


def test_nothing_is_said_of_a_row_that_nothing_is_known_of():
    found = verdict(0.5, blind=True)
    assert (found.verdict, found.change, found.low, found.high, found.smallest) == ("unclear", 0.5, None, None, None)
    assert verdict(0.5, blind=True, degrees=2).verdict == "slower"


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_change_at_one_clock_needs_half_of_it_in_the_time(sign):
    called = {1.0: "slower", -1.0: "faster"}[sign]
    assert _shown(contrast(sign * 0.04, relative=sign * 0.0201)) == called
    assert _shown(contrast(sign * 0.04, relative=sign * 0.0199)) == "unclear"
    assert _shown(contrast(sign * 0.04, relative=-sign * 0.04)) == "unclear"


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_row_goes_along_with_its_group_where_it_lies_nearer_to_it_than_to_nothing(sign):
    def goes(change, error, move):
        low, high = (sign * (change + one) for one in (-sign * 3 * error, sign * 3 * error))
        return _belongs(SimpleNamespace(change=sign * change, low=low, high=high), move, error**2)

    move = Move(sign * 0.04, *sorted((sign * 0.03, sign * 0.05)), 8)
    # The limit: half of the move, less what odds of ten to one are worth.
    for error in (0.005, 0.008):
        limit = 0.02 - error**2 * math.log(10) / 0.04
        assert goes(limit + 1e-6, 0.02, move)
        narrow = SimpleNamespace(low=-1.0, high=1.0)
        for change, expected in ((limit + 1e-6, True), (limit - 1e-6, False)):
            narrow.change = sign * change
            assert _belongs(narrow, move, error**2) is expected
    against = SimpleNamespace(low=-1.0, high=1.0, change=-sign * 1e-9)
    assert not _belongs(against, move, 1.0), "not against its direction, however little is known"
    assert not goes(0.06, 0.001, move), "beyond the group's interval"
    assert not goes(0.025, 0.001, move)
    assert not goes(0.04, 0.01, Move(sign * 0.009, *sorted((sign * 0.005, sign * 0.02)), 8)), (
        "a group that is not shown"
    )


def test_a_row_is_called_with_its_group_and_says_so():
    group, whole = Move(0.02, 0.015, 0.025, 9), Move(0.021, 0.015, 0.03, 9)
    found = verdict(0.02, error=0.01, moves=(group, whole), placement=0.04)
    assert (found.verdict, found.together) == ("slower", group)
    assert verdict(0.02, error=0.01, moves=(Move(0.0, -0.1, 0.1, 9), whole)).together is whole
    assert verdict(0.06, moves=(group,)).together is None, "it shows it alone"
    assert verdict(0.0, error=0.001, moves=(group, whole)).verdict == "same"


def test_unchanged_rows_have_a_fifth_of_the_alarms():
    rows = [contrast(), contrast(), contrast(), contrast(blind=True), None, contrast()]
    names = ["a", "b", "c", "d", "e", None]
    found = _confidence([rows], [[True, True, False, True, True, True]], [names])
    assert found[True] == pytest.approx((1 - 0.2 * 0.03) ** (1 / 2))
    assert found[False] == pytest.approx(1 - 0.8 * 0.03)
    alone = _confidence([rows], [[True] * 6], [names])
    assert alone[True] == pytest.approx((1 - 0.03) ** (1 / 3))
    changed = _confidence([rows], [[False] * 6], [names])
    assert changed[False] == pytest.approx((1 - 0.03) ** (1 / 3))


def test_rows_with_and_without_references_do_not_teach_each_other():
    def at(apart):
        """Two processes a side, so far apart."""
        return Leveled(({n: Level(n * apart, 0.001, 0.0, None, 9) for n in (0, 1)},) * 2, 0.0)

    def smallest(apart):
        cases = [*[[at(apart), at(0.0)]] * 4, [at(0.01)]]
        names = [*[["a", "b"]] * 4, ["a"]]
        found = judge(cases, [*[[False, True]] * 4, [False]], (1, 1), 0.03, names)
        assert [one.references for one in found[0]] == [(1,), ()]
        return found[0][0].smallest, found[4][0].smallest

    loud, quiet = smallest(0.05), smallest(0.0)
    assert loud[0] > 3 * quiet[0]
    assert loud[1] == quiet[1]
    assert judge([[at(0.0)]], [[False]], (1, 1), 0.03, [[None]])[0][0].verdict == "unclear", "a yardstick has none"
    assert judge([[at(0.0)]], [[False]], (1, 1), 0.03)[0][0].low is not None


# ── what a diff says of itself ─────────────────────────────────────────────────────────────────────


def said(**changed):
    values = dict.fromkeys(
        ("a_ids", "b_ids", "changes", "turned", "untimed", "removed", "added", "notes", "machines"), ()
    )
    return Diff(**(values | {"shift": None, "same_within": 0.03} | changed))


@pytest.mark.parametrize("about", list(itertools.product((False, True), repeat=3)))
def test_any_verdict_is_one(about):
    turned, called, shown = about
    row = SimpleNamespace(verdict="slower" if called else "unclear")
    found = said(
        turned=(Turned(None, None),) * turned,
        changes=(SimpleNamespace(verdict="unclear"), row),
        shift=SimpleNamespace(shown=shown),
    )
    assert found.has_judged is any(about)
    assert not said().has_judged


def test_what_counts_for_the_exit_code():
    rows = [
        SimpleNamespace(verdict=verdict, change=change)
        for verdict, change in (("slower", 0.03), ("slower", 0.031), ("same", 0.5), ("slower", None))
    ]
    assert said(changes=tuple(rows)).slower_than(0.03) == [rows[1]]

    def throughout(machine_may_move=False, **changed):
        one = SimpleNamespace(**({"shown": True, "change": 0.031, "cause": "code"} | changed))
        return said(shift=one).is_slower_throughout(0.03, machine_may_move=machine_may_move)

    assert throughout()
    assert not throughout(change=0.03)
    assert not throughout(shown=False)
    assert throughout(cause="machine")
    assert not throughout(cause="machine", machine_may_move=True)
    assert throughout(machine_may_move=True)
    assert not said().is_slower_throughout(0.03)


@pytest.mark.parametrize("before", Status)
@pytest.mark.parametrize("after", Status)
def test_only_what_passed_can_be_lost(before, after):
    one = Turned(SimpleNamespace(status=before), SimpleNamespace(status=after))
    lost = before is Status.PASSED and after not in (Status.PASSED, Status.SKIPPED)
    assert one.is_regression is lost
    assert said(turned=(one,)).regressions() == [one] * lost
