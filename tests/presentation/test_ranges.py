"""Values derived from several medians: their ranges, and the digits in which they are shown."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from attnbench.formats.layouts.base import imported_time
from attnbench.presentation.matrix import summary
from attnbench.presentation.ranges import Range, added, limit, limit_cells
from attnbench.presentation.reconcile import reconciled
from attnbench.presentation.serving import serving
from attnbench.presentation.serving_run import doublings
from attnbench.presentation.video import video
from attnbench.record import Record, Run, Speedup, Status
from attnbench.store.derive import derive
from made_up_run import make_run, make_time


def timed(median, low=None, high=None):
    return replace(imported_time(mean_ms=median, median_ms=median), timer="wall", ci_low_ms=low, ci_high_ms=high)


def record(backend="row", case="b8", **given):
    batch = int(case[1:])
    return Record(
        **{
            "workload": "hstu-serving",
            "case": {"batch": batch, "num_candidates": 128, "cached": 0, "new_tokens": 256},
            "case_id": case,
            "group": case,
            "backend": backend,
            "status": Status.PASSED,
            "counters": {"requests": 8, "layers": 2},
        }
        | given
    )


def run_of(*records):
    return Run(id="abcd1234", suite="hstu-serving", command="run", started="2026-01-01", records=list(records))


def cells(block, row=0):
    """The texts of a row by column key; all intervals have the title `95 %`."""
    return {column.key: block.lines[row].cells.get(column.key, "") for column in block.columns}


def test_a_range_has_each_median_at_an_end_of_its_interval():
    one, other = Range(6.0, 5.0, 8.0), Range(2.0, 1.0, 4.0)
    assert one.plus(other) == Range(8.0, 6.0, 12.0)
    assert one.minus(other) == Range(4.0, 1.0, 7.0)
    assert one.times(3) == Range(18.0, 15.0, 24.0)
    assert one.over(other) == Range(3.0, 1.25, 8.0)
    assert added([]).plus(one) == one
    assert limit(one, other) == Range(4.0, 2.25, 9.0)
    assert one.over(Range(2.0, -1.0, 4.0)).high == math.inf


def test_what_has_no_interval_gives_no_range():
    unknown = Range(2.0)
    for found in (unknown.plus(Range(1.0, 1.0, 1.0)), Range(1.0, 1.0, 1.0).over(unknown), unknown.times(2)):
        assert (found.low, found.high, found.half, found.is_known) == (None, None, None, False)


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        (Range(2.333, 2.31, 2.36), ("2.333x", "±0.027")),
        (Range(21.127, 1.3, 59.0), ("1.3x to 59x", "")),
        (Range(21.127), ("21.1x", "")),
        (Range(42.4, 3.14, math.inf), ("over 3.1x", "")),
    ],
)
def test_a_limit_is_shown_with_the_digits_that_its_range_supports(found, shown):
    assert tuple(limit_cells(found).values()) == shown


def test_a_served_steps_limit_has_the_range_of_its_phases():
    steady = {"strip": timed(2.0, 1.9, 2.1), "attention": timed(4.0, 3.9, 4.2), "head": timed(1.0, 0.9, 1.1)}
    noisy = steady | {"head": timed(1.0, 0.1, 70.0)}
    (block,) = serving("title", [record(time=timed(9.0), phases=phases) for phases in (steady, noisy)])
    # Both layers: 1 + 8 / 3, with 7.8 / 3.2 and 8.4 / 2.8 at the ends.
    assert (cells(block)["limit"], cells(block)["limit_margin"]) == ("3.7x", "±0.3")
    assert (cells(block, 1)["limit"], cells(block, 1)["limit_margin"]) == ("1.1x to 5.2x", "")


def test_a_denoising_steps_gain_has_its_interval_and_its_limit_a_range():
    phases = {"attention": timed(60.0, 59.0, 61.0)}
    base, fast = (
        record(name, time=timed(ms, ms - 2, ms + 2), phases=phases, counters={"denoising_steps": 1})
        for name, ms in (("video[sdpa]", 100.0), ("video[flash]", 90.0))
    )
    fast = replace(fast, speedup=Speedup(baseline="video[sdpa]", ratio=1.112, ci_low=1.05, ci_high=1.15))
    (block,) = video("title", [base, fast], "video[sdpa]")
    # 102 / (102 - 59) and 98 / (98 - 61)
    assert (cells(block)["limit"], cells(block)["limit_margin"]) == ("2.50x", "±0.15")
    assert (cells(block, 1)["measured"], cells(block, 1)["measured_margin"]) == ("1.11x", "±0.06")
    explained, *_ = reconciled("title", [base, fast], "video[sdpa]")
    assert (cells(explained)["limit"], cells(explained)["limit_margin"]) == ("2.50x", "±0.15")


def test_the_cost_of_doubling_claims_no_more_than_its_times():
    def row(case, *time):
        return record(case=case, time=timed(*time))

    steady = [row("b1", 6.0, 5.9, 6.1), row("b2", 500.0, 450.0, 550.0)]
    (sentence,) = doublings(run_of(*steady))
    assert sentence == "p50 end to end of row: twice the users 83x"
    (sentence,) = doublings(run_of(*steady, row("b4", 1000.0, 10.0, 3000.0)))
    assert sentence == "p50 end to end of row: twice the users 83x", "a wild pair gives no number"
    (sentence,) = doublings(run_of(row("b1", 6.0, 1.0, 90.0), row("b2", 9.0, 8.0, 10.0)))
    assert sentence == "p50 end to end of row: twice the users not known: the times vary by more than themselves"


def test_no_range_of_speed_ups_is_taken_from_ratios_without_an_interval():
    def case(name, *own_ms):
        base, own = make_time([1.0] * len(own_ms)), make_time(list(own_ms))
        return [record("base", name, time=base), record("own", name, time=own)]

    def sentence(*records):
        run = make_run(list(records))
        return summary(derive(replace(run, settings=replace(run.settings, baseline="base")))).sentence

    few, none = case("b1", 5.0, 6.0, 7.0), "no clear winner in any of 2 cases; base has the lowest median in 2"
    assert sentence(*few, *case("b2", 5.0, 6.0)) == none
    assert sentence(*few, *case("b2", *(4.0, 0.9, 6.0, 10.0) * 4)) == none, "an interval wider than the ratio"
    steady = case("b2", *(5.0, 5.2, 5.1, 5.3) * 4)
    assert sentence(*few, *steady) == (
        "base is fastest in 1 of 2 cases, no clear winner in 1; 5.15 times as fast as own (known in 1 of 2 cases)"
    )
