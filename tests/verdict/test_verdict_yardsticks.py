"""Yardsticks compared with the rows of a case: their processes, their parts, their clocks."""

from __future__ import annotations

import dataclasses

import pytest
from test_verdict_diff import make_run

from attnbench.record import Yardstick
from attnbench.verdict.sides import lay_out
from attnbench.verdict.yardsticks import label, yardstick_rows


def beside(*samples, rounds=(0, 1), clocks=(), flops=7, moved=4):
    return Yardstick(flops=flops, bytes=moved, rounds=tuple(rounds), samples_ms=tuple(samples), sm_mhz=tuple(clocks))


def rows_of(a, b, backends=("mine",)):
    """Yardstick rows of two runs of one case; a dict of yardsticks each, or one a backend and process."""
    runs = []
    for side, given in enumerate((a, b)):
        processes = given if isinstance(given, list) else [given]
        run = make_run(
            side,
            cases=1,
            backends=dict.fromkeys(backends, 1.0),
            replicates=len(processes),
            change_time={"tick_ms": 3e-5},
        )
        records = [
            dataclasses.replace(one, yardsticks=dict(processes[one.replicate].get(one.backend, {})))
            for one in run.records
        ]
        runs.append(dataclasses.replace(run, records=tuple(records)))
    return yardstick_rows(lay_out(runs[:1], runs[1:]))


def test_a_yardstick_has_the_processes_of_the_rows_beside_it():
    one, two = ({"mine": {"copy": beside(1.0, value)}} for value in (2.0, 3.0))
    (row,) = rows_of([one, two], one)
    assert row.key == ("attention", "s0", "yardstick copy", None)
    assert label(row) == "copy"
    assert [list(side) for side in row.sides] == [[(0, 0, 0), (0, 1, 0)], [(0, 0, 0)]]
    assert row.sides[0][0, 1, 0].time.samples_ms == (1.0, 3.0)
    time = row.sides[1][0, 0, 0].time
    assert (time.rounds, time.num_samples, time.sm_mhz, time.tick_ms) == ((0, 1), 2, (), 3e-5)
    assert (time.timer, time.l2, time.regime, time.median_ms) == ("cupti", "cold", "burst", None)
    assert row.sides[1][0, 0, 0].yardsticks == {}


def test_a_yardstick_of_one_side_or_of_other_work_is_none():
    mine = {"mine": {"copy": beside(1.0, 2.0), "matmul": beside(3.0, 4.0)}}
    assert [label(row) for row in rows_of(mine, mine)] == ["copy", "matmul"]
    assert [label(row) for row in rows_of(mine, {"mine": {"matmul": beside(3.0, 4.0)}})] == ["matmul"]
    assert rows_of(mine, {"mine": {"copy": beside(1.0, 2.0, flops=8), "matmul": beside(3.0, 4.0, moved=5)}}) == []
    assert rows_of({}, {}) == []


def test_parts_are_joined_by_their_rounds_and_each_counts_once():
    parts = {
        "base": {"copy": beside(1.0, 2.0, rounds=(4, 5), clocks=(1500.0, None))},
        "mine": {"copy": beside(3.0, 4.0, rounds=(0, 2))},
        "same": {"copy": beside(3.0, 4.0, rounds=(0, 2))},
    }
    (row,) = rows_of(parts, parts, backends=tuple(parts))
    time = row.sides[0][0, 0, 0].time
    assert time.rounds == (0, 2, 4, 5)
    assert time.samples_ms == (3.0, 4.0, 1.0, 2.0)
    assert time.sm_mhz == (None, None, 1500.0, None)
    assert time.num_samples == 4


@pytest.mark.parametrize("clocks", [(), (None, None)])
def test_clocks_that_nobody_read_are_none(clocks):
    given = {"mine": {"copy": beside(1.0, 2.0, clocks=clocks)}}
    assert rows_of(given, given)[0].sides[0][0, 0, 0].time.sm_mhz == ()
