"""Parts of a group: they share rounds only with the baseline that is measured in each."""

from __future__ import annotations

import dataclasses

import pytest
from small_runs import small_run

from attnbench.record import PowerSeries, Record, Status, Time, Yardstick
from attnbench.worker.parts import SEVERAL, joined, moved, rounds_taken


def time_of(samples, timer="simulated"):
    count, middle = len(samples), samples[len(samples) // 2]
    return Time(
        timer=timer,
        l2="cold",
        regime="burst",
        stopped_by="rel-ci",
        num_samples=count,
        median_ms=middle,
        mean_ms=middle,
        min_ms=min(samples),
        max_ms=max(samples),
        p95_ms=middle,
        p99_ms=middle,
        samples_ms=tuple(samples),
        rounds=tuple(range(count)),
        at_s=tuple(0.5 * i for i in range(count)),
        sm_mhz=(1980.0,) * count,
    )


@pytest.fixture
def record():
    group = small_run(["honest"]).plan[0]
    return Record(
        workload="attention",
        case=group.case,
        case_id=group.case_id,
        group=group.group,
        backend="honest",
        status=Status.PASSED,
        time=time_of([1.0, 2.0, 3.0]),
        phases={"plan": time_of([9.0])},
        timers={"simulated": time_of([1.0, 2.0, 3.0]), "late": time_of([4.0] * 5, "late")},
        yardsticks={"copy": Yardstick(flops=0, bytes=64, samples_ms=(0.1, 0.2), rounds=(0, 2), sm_mhz=(1980.0, None))},
        power_w=PowerSeries(at_s=(0.0, 1.0), watts=(100.0, 110.0), celsius=(40.0, 41.0)),
    )


def test_the_first_part_stays_where_it_is(record):
    assert moved(record, rounds=0, seconds=0.0) is record


def test_a_later_part_has_rounds_and_moments_of_its_own(record):
    later = moved(record, rounds=7, seconds=2.25)
    assert later.time.rounds == (7, 8, 9)
    assert later.time.at_s == (2.25, 2.75, 3.25)
    assert later.timers["late"].rounds == (7, 8, 9, 10, 11)
    assert later.power_w.at_s == (2.25, 3.25)
    assert later.power_w.watts == record.power_w.watts
    assert later.time.samples_ms == record.time.samples_ms
    assert later.yardsticks["copy"].rounds == (7, 9)
    assert later.yardsticks["copy"].samples_ms == (0.1, 0.2)
    assert later.phases == record.phases, "compared with nothing"


def test_what_has_no_time_has_nothing_to_move(record):
    failed = dataclasses.replace(record, status=Status.FAILED, reason="so", time=None, phases={}, yardsticks={})
    assert moved(failed, rounds=7, seconds=1.0) is failed
    assert joined(failed, record) is failed
    assert joined(record, failed) is record


def test_the_longest_timer_counts(record):
    assert rounds_taken(record) == 5
    assert rounds_taken(moved(record, rounds=5, seconds=1.0)) == 10
    assert rounds_taken(dataclasses.replace(record, time=None, timers={})) == 0


def test_the_baseline_gathers_the_samples_of_every_part(record):
    whole = record
    for part in (1, 2):
        whole = joined(whole, moved(record, rounds=rounds_taken(whole), seconds=10.0 * part))
    assert whole.time.samples_ms == (1.0, 2.0, 3.0) * 3
    assert whole.time.rounds == (0, 1, 2, 5, 6, 7, 10, 11, 12)
    assert whole.time.at_s == (0.0, 0.5, 1.0, 10.0, 10.5, 11.0, 20.0, 20.5, 21.0)
    assert whole.time.num_samples == len(whole.time.sm_mhz) == 9
    assert whole.timers["late"].rounds == tuple(range(15))
    assert whole.notes == (SEVERAL,)
    assert whole.power_w == record.power_w
    assert whole.yardsticks["copy"].samples_ms == (0.1, 0.2) * 3
    assert whole.yardsticks["copy"].rounds == (0, 2, 5, 7, 10, 12)
    assert whole.yardsticks["copy"].sm_mhz == (1980.0, None) * 3


def test_a_yardstick_that_a_part_lacks_is_not_of_the_whole(record):
    later = moved(record, rounds=5, seconds=1.0)
    assert joined(record, dataclasses.replace(later, yardsticks={})).yardsticks == {}
    clockless = {"copy": dataclasses.replace(later.yardsticks["copy"], sm_mhz=())}
    assert joined(record, dataclasses.replace(later, yardsticks=clockless)).yardsticks["copy"].sm_mhz == ()
