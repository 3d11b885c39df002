"""Times converted to one clock and corrected for the drift of their group: every number by hand."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace

import pytest
from test_verdict_diff import make_record, make_time

from attnbench.stats.series import centres
from attnbench.verdict import levels as module
from attnbench.verdict.levels import levels
from attnbench.verdict.sides import Row

STILL = SimpleNamespace(gauss=lambda middle, spread: middle)
ONE = (0, 0, 0)


def timed(samples, clocks=(), rounds=None, **changed):
    """A time of these samples."""
    values = {
        "samples_ms": tuple(samples),
        "rounds": tuple(rounds or range(len(samples))),
        "sm_mhz": tuple(clocks),
        "median_ms": None,
        "mean_ms": None,
        "min_ms": None,
    }
    return make_time(1.0, STILL, samples=1, **(values | changed))


def row(a, b, name="mine"):
    """A row of times, a dict or one a side."""
    sides = [
        {place: make_record(1, name, time) for place, time in (one if isinstance(one, dict) else {ONE: one}).items()}
        for one in (a, b)
    ]
    return Row(("attention", "s1", name, None), (sides[0], sides[1]))


def of_case(rows, flags):
    (found,) = levels([rows], [flags])
    return found


def logs(*values):
    return [math.log(one) for one in values]


def test_a_row_alone_has_its_median_and_what_its_samples_say():
    a, b = [2.0, 2.1, 1.9, 2.2, 2.05, 1.8, 2.3], [3.0, 3.0, 3.1]
    (found,) = of_case([row(timed(a), timed(b))], [True])
    assert found.exponent_doubt == 0.0
    import numpy as np

    for side, samples in zip(found.sides, (a, b), strict=True):
        middle, error = centres(np.log(np.array([samples])), np.zeros(1))
        assert side[ONE].value == pytest.approx(float(middle[0]))
        assert side[ONE].raw == pytest.approx(sum(logs(*sorted(samples)[len(samples) // 2 :][:1])))
        assert side[ONE].error == pytest.approx(float(error[0]))
        assert (side[ONE].clock, side[ONE].degrees) == (None, len(samples) - 1)


def test_two_samples_say_nothing_of_their_error_and_no_time_is_none():
    (found,) = of_case([row(timed([2.0, 2.2]), timed([0.0, 2.0, 2.2, 2.4]))], [False])
    a, b = found.sides[0][ONE], found.sides[1][ONE]
    assert (a.error, a.degrees, a.value) == (None, 1, pytest.approx(sum(logs(2.0, 2.2)) / 2))
    assert (b.error, b.degrees, b.value) == (pytest.approx(math.log(1.2) / 2), 2, pytest.approx(math.log(2.2)))


DRIFT = [1.0, 1.01, 0.99, 1.05, 0.95, 1.02, 0.97]
MIDDLE = 1.0


def drifting(level, drift=DRIFT, **changed):
    return timed([level * one for one in drift], **changed)


def test_what_the_reference_did_in_the_same_round_is_taken():
    mine, reference = of_case([row(drifting(2.0), drifting(2.2)), row(drifting(5.0), drifting(4.0))], [False, True])
    for side, level in zip(mine.sides, (2.0, 2.2), strict=True):
        assert side[ONE].value == pytest.approx(math.log(level * MIDDLE))
        assert side[ONE].error == pytest.approx(0.0, abs=1e-12), "nothing but drift was in it"
    assert reference.sides[0][ONE].error > 0.01, "held against nothing"


def test_of_two_references_the_mean_of_what_they_did_is_taken():
    flat = timed([2.0] * 7)
    still, beside = of_case([row(flat, flat), row(drifting(2.0), flat)], [False, True])
    found, *_ = of_case([row(flat, flat), row(drifting(2.0), flat), row(flat, flat)], [False, True, True])
    assert still.sides[0][ONE].error == pytest.approx(beside.sides[0][ONE].error)
    assert found.sides[0][ONE].error == pytest.approx(beside.sides[0][ONE].error / 2)
    assert found.sides[1][ONE].error == 0.0


def test_a_reference_that_jumps_moves_nobody_where_there_are_three():
    jump = [one * (1.5 if place == 3 else 1.0) for place, one in enumerate(DRIFT)]
    references = [row(drifting(level), drifting(level)) for level in (1.0, 3.0)]
    found = of_case(
        [row(drifting(2.0), drifting(2.0)), *references, row(drifting(1.0, jump), drifting(1.0))], [False, *[True] * 3]
    )
    assert found[0].sides[0][ONE].error == pytest.approx(0.0, abs=1e-12)
    assert found[1].sides[0][ONE].error > 0.0, "of two others one jumped"
    assert found[1].sides[1][ONE].error == pytest.approx(0.0, abs=1e-12)
    assert found[0].sides[0][ONE].value == pytest.approx(math.log(2.0))


@pytest.mark.parametrize("shared", [5, 6])
def test_rounds_are_paired_by_their_number_where_six_are_shared(shared):
    later = timed([7.0 * one for one in DRIFT[-shared:]] + [7.0] * 3, rounds=[*range(7 - shared, 7), 20, 21, 22])
    mine, _ = of_case([row(drifting(2.0), drifting(2.0)), row(later, drifting(1.0))], [False, True])
    found = mine.sides[0][ONE]
    if shared == 6:
        # The later rounds make the reference's median that of 7 * (0.95 ... 1.05) and three sevens: 7.
        assert found.value == pytest.approx(math.log(2.0))
        assert (found.error, found.degrees) == (pytest.approx(0.0, abs=1e-12), 5)
    else:
        assert (found.error > 0.01, found.degrees) == (True, 6)


def test_processes_and_cases_do_not_share_their_drift():
    other = DRIFT[::-1]
    apart = {ONE: drifting(2.0), (0, 1, 0): drifting(2.0, other)}
    beside = {ONE: drifting(3.0), (0, 1, 0): drifting(3.0, other)}
    (mine, _), (alone,) = levels(
        [[row(apart, drifting(2.0)), row(beside, drifting(3.0))], [row(drifting(1.0), drifting(1.0))]],
        [[False, True], [False]],
    )
    assert [one.error for one in mine.sides[0].values()] == pytest.approx([0.0, 0.0], abs=1e-12)
    assert alone.sides[0][ONE].error > 0.01


def test_large_grids_are_done_in_blocks_with_the_same_result(monkeypatch):
    cases = [
        [row(drifting(1.0 + number), drifting(2.0 + number)), row(drifting(5.0), drifting(5.5))] for number in range(5)
    ]
    flags = [[False, True]] * 5
    whole = levels(cases, flags)
    sizes = []
    inner = module._levels
    monkeypatch.setattr(module, "_levels", lambda block, given: sizes.append(len(block)) or inner(block, given))
    monkeypatch.setattr(module, "CELLS", 56)  # a case has four times seven samples
    assert levels(cases, flags) == whole
    assert sizes == [2, 2, 1]


# ── the clock ──────────────────────────────────────────────────────────────────────────────────────

STEPS = [0.02, -0.02, 0.02, -0.02, 0.02, -0.02, 0.02, -0.02]
PRIOR = 1 / 0.35**2


def clocked(level, mhz, answer, steps=STEPS, extra=None):
    """Times that answer so to the clock, with so much more in single samples."""
    extra = extra or {}
    samples = [level * math.exp(-answer * one + extra.get(place, 0.0)) for place, one in enumerate(steps)]
    return timed(samples, clocks=[mhz * math.exp(one) for one in steps])


@pytest.mark.parametrize(("answer", "found"), [(1.0, 1.0), (0.4, 0.4), (0.0, 0.0)])
def test_the_answer_to_the_clock_is_read_off_the_samples(answer, found):
    (one,) = of_case([row(clocked(2.0, 1000.0, answer), clocked(2.0, 1100.0, answer))], [False])
    # The samples fit without a rest: what is left in doubt is how the clock was read.
    seen = 1 / 0.05**2
    exponent = (found * seen + 0.75 * PRIOR) / (seen + PRIOR)
    assert one.exponent_doubt == pytest.approx((seen + PRIOR) ** -0.5)
    apart = math.log(1.1) / 2
    for side, sign, mhz in zip(one.sides, (-1, 1), (1000.0, 1100.0), strict=True):
        assert side[ONE].clock == pytest.approx(math.log(mhz))
        assert side[ONE].raw == pytest.approx(math.log(2.0))
        assert side[ONE].value == pytest.approx(math.log(2.0) + sign * exponent * apart)


def test_an_answer_is_between_none_and_somewhat_more_than_full():
    for answer, exponent in ((2.0, 1.2), (-2.0, 0.0)):
        (one,) = of_case([row(clocked(2.0, 1000.0, answer), clocked(2.0, 1100.0, answer))], [False])
        apart = one.sides[1][ONE].value - one.sides[0][ONE].value
        assert apart == pytest.approx(exponent * math.log(1.1))


def test_what_does_not_fit_the_clock_is_doubt():
    extra = {0: 0.01, 1: 0.01, 2: -0.01, 3: -0.01}  # the same at both clocks: the slope stays
    (one,) = of_case([row(clocked(2.0, 1000.0, 1.0, extra=extra), clocked(2.0, 1000.0, 1.0, extra=extra))], [False])
    rest, squares = 8 * 0.01**2 / (16 - 2), 16 * 0.02**2
    variance = rest / squares + 0.05**2
    assert one.exponent_doubt == pytest.approx((1 / variance + PRIOR) ** -0.5)


def test_a_sample_far_off_counts_as_six_deviations():
    steps = [*STEPS, 0.1]
    far = {8: 9.0}
    (one,) = of_case([row(clocked(2.0, 1000.0, 1.0, steps, far), clocked(2.0, 1100.0, 1.0, steps, far))], [False])
    # Around their medians, which are 0.02 of both: five of nine clocks are there or above, as are five of nine times.
    x = [0.0, -0.04] * 4 + [0.08]
    y = [-0.04, 0.0] * 4 + [8.88]
    deviation = sorted(abs(one) for one in y)[4]
    y = [max(-6 * deviation, min(6 * deviation, one)) for one in y]
    squares = 2 * sum(one * one for one in x)
    slope = -2 * sum(a * b for a, b in zip(x, y, strict=True)) / squares
    rest = 2 * sum((b + slope * a) ** 2 for a, b in zip(x, y, strict=True)) / (18 - 2)
    variance = rest / squares + 0.05**2
    assert one.exponent_doubt == pytest.approx((1 / variance + PRIOR) ** -0.5)
    exponent = min(1.2, max(0.0, (slope / variance + 0.75 * PRIOR) / (1 / variance + PRIOR)))
    shift = one.sides[1][ONE].value - one.sides[0][ONE].value
    assert shift == pytest.approx(exponent * math.log(1.1))


@pytest.mark.parametrize("samples", [[2.0, 2.1, 1.9], [2.0, 2.0, 2.0]], ids=["noisy", "equal"])
def test_a_clock_that_stood_still_tells_nothing_of_the_answer(samples):
    (one,) = of_case([row(timed(samples, [1000.0] * 3), timed(samples, [1100.0] * 3))], [False])
    assert one.exponent_doubt == pytest.approx(0.35, rel=1e-6)
    assert one.sides[1][ONE].value - one.sides[0][ONE].value == pytest.approx(0.75 * math.log(1.1), rel=1e-6)


def test_a_sample_without_a_clock_says_nothing_of_the_answer():
    def unread(mhz):
        time = clocked(2.0, mhz, 1.0, [*STEPS, 0.02])
        return dataclasses.replace(
            time, samples_ms=(*time.samples_ms[:-1], 2.0), sm_mhz=(*time.sm_mhz[:-1], None), rounds=tuple(range(9))
        )

    (one,) = of_case([row(unread(1000.0), unread(1100.0))], [False])
    assert one.exponent_doubt == pytest.approx((1 / 0.05**2 + PRIOR) ** -0.5), "the others fit without a rest"


def test_a_process_without_a_clock_leaves_its_row_as_it_is_and_no_other():
    lacking = row({ONE: clocked(2.0, 1000.0, 1.0), (0, 1, 0): timed([2.0] * 4)}, clocked(2.0, 1100.0, 1.0))
    other = row(clocked(2.0, 1000.0, 1.0), clocked(2.0, 1100.0, 1.0), "other")
    first, second = of_case([lacking, other], [False, False])
    assert first.exponent_doubt == 0.0
    assert {level.clock for side in first.sides for level in side.values()} == {None}
    assert {round(level.value, 12) for side in first.sides for level in side.values()} == {round(math.log(2.0), 12)}
    assert second.exponent_doubt > 0.0
    assert second.sides[1][ONE].value > math.log(2.0)


def test_the_clock_of_a_row_is_the_mean_of_its_sides_however_many_processes_they_have():
    sides = {(0, place, 0): clocked(2.0, mhz, 1.0) for place, mhz in enumerate((900.0, 1000.0, 1000.0))}
    (one,) = of_case([row(sides, clocked(2.0, 1100.0, 1.0))], [False])
    seen = 1 / 0.05**2
    exponent = (seen + 0.75 * PRIOR) / (seen + PRIOR)
    middle = (sum(logs(900.0, 1000.0, 1000.0)) / 3 + math.log(1100.0)) / 2
    assert one.sides[1][ONE].value == pytest.approx(math.log(2.0) + exponent * (math.log(1100.0) - middle))
    assert one.sides[0][ONE].value == pytest.approx(math.log(2.0) + exponent * (math.log(900.0) - middle))


# ── the tick ───────────────────────────────────────────────────────────────────────────────────────


def test_the_tick_of_a_timer_is_doubt_of_both_that_are_held_together():
    tick = {"tick_ms": 0.01}
    mine, reference, alone = (row(timed([level] * 9, **tick), timed([level] * 9, **tick)) for level in (1.0, 2.0, 4.0))
    (beside, held), (bare,) = levels([[mine, reference], [alone]], [[False, True], [False]])
    usual = (0.01 + 0.005) / 2
    corner = math.hypot(0.01, usual) / math.sqrt(2)
    assert beside.sides[0][ONE].error == pytest.approx(corner * math.sqrt(2) / 9)
    assert held.sides[0][ONE].error == pytest.approx(0.005 * math.sqrt(2) / 9)
    assert bare.sides[0][ONE].error == pytest.approx(0.0025 * math.sqrt(2) / 9)


def test_samples_of_nothing_are_none():
    (found,) = of_case([row(timed([0.0, 0.0], median_ms=3.0), drifting(2.0))], [False])
    assert (found.sides[0][ONE].value, found.sides[0][ONE].error) == (pytest.approx(math.log(3.0)), 0.01)


def test_a_time_without_samples_stands_beside_sampled_ones():
    bare = timed([], median_ms=3.0)
    found = of_case([row(bare, drifting(2.0)), row(bare, bare)], [False, False])
    assert found[0].sides[0][ONE].value == pytest.approx(math.log(3.0))
    assert found[0].sides[1][ONE].value == pytest.approx(math.log(2.0))
    assert (found[0].sides[0][ONE].error, found[0].sides[0][ONE].degrees) == (0.01, 4)
    assert (found[1].sides[1][ONE].clock, found[1].exponent_doubt) == (None, 0.0)
    assert of_case([row(bare, bare)], [False])[0].sides[1][ONE].raw == pytest.approx(math.log(3.0))
