import dataclasses
from pathlib import Path

import pytest

from attnbench.presentation.blocks import blocks
from attnbench.record import Rate, Settings, Status, Work
from attnbench.stats.ratio import paired_ratio
from attnbench.store import runfile
from attnbench.store.derive import derive, derive_group
from attnbench.store.replicates import tie
from made_up_run import make_case, make_group, make_record, make_run, make_time

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def pair(base_ms, own_ms, base=None, own=None):
    case = make_case()
    return [make_record(case, "a", tflops=100.0, time=make_time(base_ms, **(base or {}))),
            make_record(case, "b", tflops=100.0, time=make_time(own_ms, **(own or {})))]  # fmt: skip


def test_the_baseline_of_the_settings_gives_everyone_a_speedup():
    run = make_run(pair([2.0] * 7, [1.0] * 7), settings=Settings(baseline="a"))
    first, second = derive(run).records
    assert first.speedup is None
    assert (second.speedup.baseline, second.speedup.ratio, second.speedup.verdict) == ("a", 2.0, "faster")


def test_a_baseline_that_did_not_pass_gives_no_speedup():
    first, second = derive(make_run(pair([2.0] * 7, [1.0] * 7), settings=Settings(baseline="a"))).records
    assert second.speedup.ratio == 2.0
    wrong = dataclasses.replace(first, status=Status.INCORRECT, time=None, rate=None, reason="out: wrong values")
    assert derive_group([wrong, second], "a")[1].speedup is None


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ([1.0] * 7, [1.3] * 7, None),
        ([1.3] * 7, [1.0] * 7, None),
        ([1.0, 1.1] * 5, [1.1, 1.0] * 5, ("a", ("b",))),
        ([1.0] * 5, [9.0] * 5, ("a", ("b",))),  # too few for an interval
    ],
)
def test_the_fastest_and_who_cannot_be_told_from_it(first, second, found):
    assert tie(pair(first, second), replicated=False) == found


def test_without_common_rounds_nobody_is_told_apart():
    apart = pair([1.0, 1.0], [9.0, 9.0], own={"rounds": (7, 8)})
    assert tie(apart, replicated=False) == ("a", ("b",))
    assert tie(apart[:1], replicated=False) is None
    assert tie([], replicated=False) is None


def test_without_a_baseline_nobody_is_compared():
    run = make_run(pair([2.0] * 7, [1.0] * 7), settings=Settings())
    assert [record.speedup for record in derive(run).records] == [None, None]


def test_different_timers_have_no_ratio():
    run = make_run(pair([2.0] * 7, [1.0] * 7, own={"timer": "wall"}), settings=Settings(baseline="a"))
    assert derive(run).records[1].speedup is None


def test_rounds_that_are_not_shared_give_no_ratio():
    run = make_run(pair([2.0] * 7, [1.0] * 7, own={"rounds": tuple(range(10, 17))}), settings=Settings(baseline="a"))
    assert derive(run).records[1].speedup is None


def test_the_tick_of_the_timer_goes_into_the_ratio():
    base = [0.005024, 0.004992, 0.005024, 0.005056, 0.004992, 0.005024, 0.004992, 0.005024]
    own = [0.004992, 0.004992, 0.005024, 0.005024, 0.004992, 0.005024, 0.004992, 0.004992]
    tick = {"tick_ms": 3.2e-5}
    run = make_run(pair(base, own, tick, tick), settings=Settings(baseline="a"))
    wanted = paired_ratio(dict(enumerate(base)), dict(enumerate(own)), tick=3.2e-5)
    assert wanted.ratio != paired_ratio(dict(enumerate(base)), dict(enumerate(own))).ratio
    assert derive(run).records[1].speedup.ratio == wanted.ratio


def test_a_sample_of_zero_has_no_ratio_but_stays_a_sample():
    run = make_run(pair([2.0] * 7, [0.0, *[1.0] * 6]), settings=Settings(baseline="a"))
    record = derive(run).records[1]
    assert record.speedup.ratio == 2.0
    assert (record.time.num_samples, record.time.min_ms) == (7, 0.0)


def test_what_agrees_already_is_handed_back_itself():
    run = derive(make_run(make_group(make_case())))
    assert all(new is old for new, old in zip(derive(run).records, run.records, strict=True))
    assert all(new is old for new, old in zip(derive_group(run.records, "sdpa-flash"), run.records, strict=True))


def test_timers_and_phases_are_derived_too():
    time = make_time([1.0, 2.0, 9.0])
    record = make_record(make_case(), "a", tflops=100.0, time=time)
    wrong = dataclasses.replace(time, median_ms=77.0)
    record = dataclasses.replace(record, timers={"cupti": wrong}, phases={"kernel": wrong})
    found = derive(make_run([record])).records[0]
    assert found.timers["cupti"].median_ms == found.phases["kernel"].median_ms == pytest.approx(2.0)


def test_records_stay_in_their_order_when_groups_are_mixed():
    records = [*make_group(make_case()), *make_group(make_case(causal=True))]
    mixed = records[::2] + records[1::2]
    found = derive(make_run(mixed)).records
    assert [(item.case_id, item.backend) for item in found] == [(item.case_id, item.backend) for item in mixed]


def sparse(**rate):
    """A record that did a tenth of its useful work."""
    record = make_record(make_case(), "sparse", tflops=2000.0)
    work = dataclasses.replace(record.work, executed_flops=record.work.flops // 10)
    return dataclasses.replace(record, work=work, rate=dataclasses.replace(record.rate, **rate))


def test_the_share_of_the_peak_of_skipped_work_counts_executed_work():
    """Files from before `peak_counts` have the useful work in it: here twice the peak."""
    (old,) = derive(make_run([sparse(percent_of_peak=202.0)])).records
    assert old.rate.percent_of_peak == pytest.approx(20.2, rel=0.01)
    assert old.rate.peak_counts == "executed"
    (new,) = derive(make_run([sparse(percent_of_peak=20.2, peak_counts="executed")])).records
    assert new.rate.percent_of_peak == pytest.approx(20.2, rel=0.01)
    assert derive(derive(make_run([sparse(percent_of_peak=202.0)]))).records == (old,)
    dense = derive(make_run([make_record(make_case(), "dense", tflops=500.0)])).records[0].rate
    assert (dense.peak_counts, dense.percent_of_peak) == ("useful", pytest.approx(100 * 500 / 989, rel=0.01))


def test_more_than_the_peak_is_no_share_of_it():
    work = Work(flops=2_000_000_000, bytes=1)
    assert Rate.of(work, 1.0, 100.0).percent_of_peak == 100.0
    assert Rate.of(work, 1.0, 100.5) == Rate(tflops=2.0, gbps=1e-6)


@pytest.mark.parametrize("path", sorted(RESULTS.glob("hstu-bsa-*-h200.json")), ids=lambda path: path.stem)
def test_no_committed_row_is_over_the_peak_and_executed_work_is_named(path):
    run = runfile.read(path)
    lines = [(line.record, line.cells) for block in blocks(run) for line in block.lines if "phase" not in line.cells]
    sparse_rows = [(record, cells) for record, cells in lines if record.backend == "hstu-bsa-triton"]
    assert sparse_rows
    for record, cells in lines:
        skips = record.work.least_flops < record.work.flops
        assert cells.get("peak_executed" if skips else "peak", "") or not record.rate
        assert not cells.get("peak" if skips else "peak_executed")
        assert record.rate is None or 0 < record.rate.percent_of_peak <= 100
    assert all(record.rate.peak_counts == "executed" for record, _ in sparse_rows)
