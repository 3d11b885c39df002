"""From the plan to the run file on a simulated H200: every number of the record is known in advance."""

from __future__ import annotations

import os
import statistics

import pytest
from simulated_timers import SWING, TRUE_MS, true_ms
from small_runs import FAKES, by_name, small_run

from attnbench.errors import Unavailable, UsageError
from attnbench.machine.peaks import peak
from attnbench.record import Run, Status
from attnbench.stats.summary import summarise
from attnbench.store.runfile import read
from attnbench.sweep.run import execute

FAST = ("reference", "twice-as-fast", "same", "slower")


@pytest.fixture
def card(nvml, monkeypatch):
    """The fake NVML, and workers that believe in the card."""
    monkeypatch.syspath_prepend(str(FAKES / "simulated_h200"))
    monkeypatch.setenv("ATTNBENCH_TIMERS", str(FAKES / "simulated_timers.py"))
    return nvml


def measured(*groups, on_event=lambda event: None, path=None, **settings) -> Run:
    values = {
        "device": "cuda:0",
        "baseline": "reference",
        "warmup": 3,
        "iterations": None,
        "max_seconds": 3600.0,
    } | settings
    return execute(
        small_run(*groups, **values), path=path, backend_files=[str(FAKES / "on_card.py")], on_event=on_event
    )


def test_times_ratios_and_verdicts_are_those_of_the_card(card, tmp_path):
    locks = set()
    run = measured(
        [*FAST, "too-large-for-it"],
        ["reference", "twice-as-fast"],
        path=tmp_path / "run.json",
        lock_clocks="1500,2619",
        on_event=lambda event: locks.add(card.locked()),
    )
    assert locks == {(1500, 2619)}, "all the while"
    assert card.wait_locked((None, None)) == (None, None), "and not after"

    (environment,) = run.environments
    seen = environment.gpu, environment.sm_count, environment.l2_mb, environment.power_limit_w, environment.driver
    assert seen == ("NVIDIA H200", 132, 60.0, 700.0, "580.95.05")

    found = by_name(run)
    assert {name: found[name].reason for name in FAST} == dict.fromkeys(FAST)
    for name in FAST:
        time, work = found[name].time, found[name].work
        assert (time.timer, time.l2, time.regime, time.stopped_by) == ("simulated", "cold", "burst", "rel-ci")
        assert time.samples_ms == tuple(true_ms(name, number) for number in range(3, 3 + time.num_samples))
        assert time.rounds == tuple(range(time.num_samples))
        assert set(time.sm_mhz) == {1980.0}
        assert time.at_s == tuple(sorted(time.at_s))
        of_samples = summarise(time.samples_ms)
        assert (time.median_ms, time.mean_ms, time.std_ms, time.ci_low_ms, time.ci_high_ms, time.p99_ms) == (
            of_samples.median,
            of_samples.mean,
            of_samples.std,
            of_samples.ci_low,
            of_samples.ci_high,
            of_samples.p99,
        )
        assert time.median_ms == TRUE_MS[name]
        assert time.busy_ms == pytest.approx(TRUE_MS[name] / 2)
        assert time.host_ms == 0.004
        assert found[name].kernels == ("first_half", "second_half")
        assert found[name].power_w is None, "a sample is shorter than the time between two readings"
        assert found[name].rate.tflops == pytest.approx(work.flops / TRUE_MS[name] / 1e9)
        h200 = peak("NVIDIA H200", "fp32")
        least_ms = max(work.flops / h200.tflops, work.bytes / h200.memory_tbps) / 1e9
        assert found[name].rate.percent_of_peak == pytest.approx(100 * least_ms / TRUE_MS[name])
        assert found[name].memory.peak_allocated_mb == pytest.approx(48, abs=0.1)
        assert found[name].ceilings == {"copy_gbps": 4270.0, "matmul_tflops": 51.0}
        assert found[name].memory.peak_reserved_mb == pytest.approx(64, abs=0.1)
        assert found[name].yardsticks == found["reference"].yardsticks, "one series, beside every record of the group"
    beside = found["reference"].yardsticks
    assert set(beside) == {"matmul", "copy"}
    for name, one in beside.items():
        assert set(one.rounds) <= set(found["reference"].time.rounds)
        assert statistics.median(one.samples_ms) == pytest.approx(TRUE_MS[f"yardstick {name}"], rel=2 * max(SWING))
        assert set(one.sm_mhz) == {1980.0}
    assert found["twice-as-fast"].work.executed_flops == 12345

    ratios = {name: (round(found[name].speedup.ratio, 3), found[name].speedup.verdict) for name in FAST[1:]}
    assert ratios == {"twice-as-fast": (2.0, "faster"), "same": (1.0, "same"), "slower": (0.8, "slower")}
    assert found["too-large-for-it"].status is Status.OOM
    assert found["too-large-for-it"].reason.startswith(
        "out of device memory although alone; about 0.5 of its memory: --batch 1 --seqlen 7 "
    )
    assert by_name(run, 1)["twice-as-fast"].speedup.ratio == pytest.approx(2.0, rel=1e-4)
    assert read(tmp_path / "run.json") == run


def test_what_is_never_known_ends_with_the_seconds_and_power_stands_beside_long_samples(card):
    run = measured(["long", "longer"], baseline="long", rel_ci=1e-9, max_seconds=0.3)
    found = by_name(run)
    assert {record.time.stopped_by for record in found.values()} == {"max-seconds"}
    assert len(found["long"].time.samples_ms) == len(found["longer"].time.samples_ms)
    power = found["longer"].power_w
    assert set(power.watts) == {136.5}
    assert set(power.celsius) == {41.0}
    assert len(power.at_s) >= 1, "how many there are, the machine's other work decides"
    assert found["longer"].speedup.ratio == pytest.approx(0.8, rel=2 * max(SWING))


def test_no_launch_is_incorrect_because_the_host_takes_longer_than_the_table(card):
    run = measured(["reference", "long-on-host"], iterations=6)
    assert [(one.status, one.reason) for one in run.records] == [(Status.PASSED, None)] * 2
    assert by_name(run)["long-on-host"].time.median_ms == pytest.approx(TRUE_MS["long-on-host"], rel=max(SWING))


def test_timers_that_disagree_are_flagged(card):
    run = measured(["reference", "twice-as-fast"], timer="all", warmup=2, iterations=10)
    for name, record in by_name(run).items():
        assert record.time.timer == "simulated", "the one auto takes"
        assert set(record.timers) == {"simulated", "simulated-late", "wall"}
        assert record.timers["simulated-late"].median_ms == pytest.approx(
            1.1 * record.time.median_ms, rel=2 * max(SWING)
        )
        assert record.timers["wall"].median_ms > 0
        note, neighbour = record.notes
        assert neighbour.startswith("another process was on the card holding 512 MiB"), "as the fake card has it"
        late, own = (1e3 * record.timers[timer].median_ms for timer in ("simulated-late", "simulated"))
        assert note == f"timers disagree: simulated-late {late:.4g} µs, simulated {own:.4g} µs (+10 %)", name


def test_some_timers_measure_in_the_order_of_their_names(card):
    run = measured(["reference", "twice-as-fast"], timer="wall,auto", warmup=2, iterations=10)
    for record in run.records:
        assert list(record.timers) == ["wall", "simulated"]
        assert record.time.timer == "wall", "the first one"
        assert len(record.timers["simulated"].samples_ms) == 10


def test_a_card_that_cannot_be_locked_is_said_before_anything_is_measured(card):
    card.set(permission=False)
    with pytest.raises(Unavailable, match="lock_clocks=1500 is not permitted"):
        measured(["reference"], lock_clocks="1500", on_event=lambda event: pytest.fail("begun"))
    with pytest.raises(UsageError, match="has no SM clock of 1501 MHz"):
        measured(["reference"], lock_clocks="1501", on_event=lambda event: pytest.fail("begun"))
    assert "ATTNBENCH_PARENT" not in os.environ
