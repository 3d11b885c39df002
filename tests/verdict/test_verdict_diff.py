"""A diff of runs whose true change is known."""

from __future__ import annotations

import dataclasses
import random
import re
import statistics

import pytest

from attnbench.errors import UsageError
from attnbench.record import Environment, Memory, Record, Run, Settings, Status, Time, Yardstick
from attnbench.verdict.change import key_of
from attnbench.verdict.diff import diff

CARD = Environment(os="Linux", python="3.12", torch="2.11", triton="3.6", gpu="NVIDIA H200", gpu_uuid="GPU-0")
BACKENDS = {"base": 1.0, "other": 0.8, "third": 1.3, "fourth": 0.9, "mine": 0.7}


def make_time(level, lots, *, samples=40, noise=0.003, drift=None, clocks=None, **changed):
    values = [level * lots.gauss(1.0, noise) * (drift[at] if drift else 1.0) for at in range(samples)]
    stats = dict.fromkeys(("median_ms", "mean_ms", "min_ms", "max_ms", "p95_ms", "p99_ms"), level)
    return Time(
        **(
            {
                "timer": "cupti",
                "l2": "cold",
                "regime": "burst",
                "stopped_by": "rel-ci",
                "num_samples": samples,
                "samples_ms": tuple(values),
                "rounds": tuple(range(samples)),
                "sm_mhz": tuple(clocks or ()),
            }
            | stats
            | changed
        )
    )


def make_record(case, backend, time, **changed):
    return Record(
        **(
            {
                "workload": "attention",
                "case": {"seqlen": case},
                "case_id": f"s{case}",
                "group": f"s{case}",
                "backend": backend,
                "version": "1",
                "source_hash": "one",
                "environment": 0,
                "status": Status.PASSED,
                "time": time,
                "memory": Memory(peak_allocated_mb=64.0),
            }
            | changed
        )
    )


def make_yardsticks(factor, lots, drift, offset, *, samples=40, flops=7):
    """A matmul and a copy beside the rows of a case."""
    return {
        name: Yardstick(
            flops=flops,
            bytes=9,
            rounds=tuple(range(samples)),
            samples_ms=make_time(
                level * factor * lots.gauss(1.0, offset), lots, drift=drift, samples=samples
            ).samples_ms,
        )
        for name, level in (("matmul", 0.03), ("copy", 0.05))
    }


def make_run(
    seed,
    *,
    cases=4,
    backends=BACKENDS,
    factors=None,
    machine=1.0,
    replicates=1,
    offset=0.002,
    source="one",
    clock=None,
    change_time=None,
    code=1.0,
    yardsticks=None,
    **changed,
):
    """A run; `factors` by backend are what its code takes longer, and its source is then `source`.

    `machine` is what everything takes longer, `code` all rows of unchanged source, `yardsticks` what these do.
    """
    lots, records = random.Random(seed), []
    for replicate in range(replicates):
        for case in range(cases):
            drift = [machine * (1.0 + 0.002 * lots.gauss(0, 1) + 0.001 * at) for at in range(40)]
            beside = make_yardsticks(yardsticks, lots, drift, offset) if yardsticks else {}
            for name, level in backends.items():
                factor = code * (factors or {}).get(name, 1.0)
                clocks = [clock * lots.gauss(1.0, 0.004) for _ in drift] if clock else None
                moved = [one * 1700.0 / mhz for one, mhz in zip(drift, clocks, strict=True)] if clocks else drift
                time = make_time(
                    level * (1 + case) * factor * lots.gauss(1.0, offset),
                    lots,
                    drift=moved,
                    clocks=clocks,
                    **(change_time or {}),
                )
                records.append(
                    make_record(
                        case,
                        name,
                        time,
                        replicate=replicate,
                        yardsticks=beside,
                        group=f"s{case}#{replicate}" if replicate else f"s{case}",
                        source_hash=source if factors and name in factors else "one",
                    )
                )
    values = {
        "id": f"{seed:08x}",
        "suite": "quick",
        "command": "",
        "started": "2026-11-20T12:00:00Z",
        "settings": Settings(device="cuda"),
        "environments": (CARD,),
        "records": tuple(records),
    }
    return Run(**(values | changed))


def edit(run, match, **changed):
    """The run with the records for which `match` holds changed."""
    return dataclasses.replace(
        run, records=tuple(dataclasses.replace(one, **changed) if match(one) else one for one in run.records)
    )


def verdicts(found, backend=None):
    return [one.verdict for one in found.changes if backend in (None, one.key[2])]


# ── verdicts ───────────────────────────────────────────────────────────────────────────────────────


def test_equal_code_on_a_machine_that_slowed_down_is_the_same():
    found = diff([make_run(1)], [make_run(2, machine=1.07)])
    assert set(verdicts(found)) == {"same"}
    assert len(found.changes) == 20
    assert all(0.05 < one.time_change < 0.09 for one in found.changes)
    assert (found.shift.cause, found.shift.shown) == ("unknown", True)
    assert found.shift.change == pytest.approx(0.07, abs=0.005)
    assert found.is_slower_throughout(0.03)
    assert not found.is_slower_throughout(0.03, machine_may_move=True)


@pytest.mark.parametrize("replicates", [1, 3])
@pytest.mark.parametrize(("factor", "verdict"), [(1.05, "slower"), (0.94, "faster")])
def test_a_change_is_seen_against_what_stayed(replicates, factor, verdict):
    a, b = (
        make_run(3, replicates=replicates),
        make_run(4, replicates=replicates, machine=0.95, factors={"mine": factor}, source="two"),
    )
    found = diff([a], [b])
    assert verdicts(found, "mine") == [verdict] * 4
    assert set(verdicts(found)) == {verdict, "same"}
    (first, *_) = [one for one in found.changes if one.key[2] == "mine"]
    assert first.low < factor - 1 < first.high
    assert first.references == ("base", "other", "third", "fourth")
    assert first.processes == (replicates, replicates)


def test_files_are_processes_as_replicates_are():
    a, b = (
        [make_run(seed + at, factors=factors, source="two") for at in range(3)]
        for seed, factors in ((10, None), (20, {"mine": 1.03}))
    )
    found = diff(a, b)
    assert verdicts(found, "mine") == ["slower"] * 4
    assert found.changes[0].processes == (3, 3)
    together = diff([make_run(10, replicates=3)], [make_run(20, replicates=3, factors={"mine": 1.03}, source="two")])
    alone = diff(a[:1], b[:1])
    assert found.changes[0].smallest < 0.7 * alone.changes[0].smallest
    assert together.changes[0].smallest < 0.7 * alone.changes[0].smallest


def test_one_reference_that_did_change_raises_no_alarm_of_others():
    found = diff(
        [make_run(5, replicates=3)],
        [edit(make_run(6, replicates=3, factors={"third": 1.2}), lambda one: True, source_hash="one")],
    )
    assert verdicts(found, "third") == ["slower"] * 4
    assert set(verdicts(found)) == {"slower", "same"}
    assert [one.key[2] for one in found.changes if one.verdict == "slower"] == ["third"] * 4


def test_of_three_references_an_odd_one_makes_doubt_not_alarm():
    backends = {name: BACKENDS[name] for name in ("base", "other", "third")}
    a, b = make_run(7, backends=backends, cases=1), make_run(8, backends=backends, cases=1, factors={"third": 1.2})
    found = diff([a], [edit(b, lambda one: True, source_hash="one")])
    assert {"slower", "faster"} & set(verdicts(found, "base") + verdicts(found, "other")) == set()


def test_references_can_be_named_or_done_without():
    a, b = make_run(9), make_run(10, factors=dict.fromkeys(BACKENDS, 1.0) | {"mine": 1.06}, source="two")
    assert all(not one.references for one in diff([a], [b]).changes)
    named = diff([a], [b], references=["base", "other"])
    assert verdicts(named, "mine") == ["slower"] * 4
    assert any("base, other: named as reference" in note for note in named.notes)
    own = diff([a], [make_run(11, machine=1.2)], references=[])
    assert all(not one.references and one.change == pytest.approx(one.time_change, abs=0.02) for one in own.changes)
    with pytest.raises(UsageError, match=r"--reference=bse is not known; one of base.*did you mean base\?"):
        diff([a], [b], references=["bse"])


def test_without_references_a_machine_may_be_a_percent_off():
    def one_backend(seed, machine):
        return make_run(
            seed,
            backends={"mine": 1.0},
            factors={"mine": 1.0},
            machine=machine,
            cases=12,
            replicates=3,
            source=str(seed),
        )

    assert not {"slower", "faster"} & set(verdicts(diff([one_backend(12, 1.0)], [one_backend(13, 1.02)])))
    assert set(verdicts(diff([one_backend(12, 1.0)], [one_backend(13, 1.15)]))) == {"slower"}


def test_unchanged_rows_of_other_cases_stand_in():
    def lone(seed, **changed):
        run = make_run(seed, backends={"base": 1.0}, cases=8, **changed)
        mine = make_run(
            seed + 100,
            backends={"mine": 1.0},
            cases=1,
            **(changed | {"source": f"{seed}"}),
            factors={"mine": 1.06 if changed else 1.0},
        )
        records = tuple(dataclasses.replace(one, case_id="s99", group="s99") for one in mine.records)
        return dataclasses.replace(run, records=run.records + records)

    found = diff([lone(14)], [lone(15, machine=1.05)])
    assert set(verdicts(found, "base")) <= {"same", "unclear"}
    (own,) = [one for one in found.changes if one.key[2] == "mine"]
    assert own.change == pytest.approx(0.06, abs=0.02)
    assert own.references == ()


def test_processes_without_samples_are_compared():
    def imported(seed, count, factor=1.0):
        runs = [
            make_run(seed + at, factors={"mine": factor}, change_time={"samples_ms": (), "rounds": ()})
            for at in range(count)
        ]
        lots = random.Random(seed)
        return [edit_medians(run, lots) for run in runs]

    def edit_medians(run, lots):
        return dataclasses.replace(
            run,
            records=tuple(
                dataclasses.replace(
                    one, time=dataclasses.replace(one.time, median_ms=one.time.median_ms * lots.gauss(1.0, 0.001))
                )
                for one in run.records
            ),
        )

    alone = diff(imported(30, 1), imported(40, 1, 1.3))
    assert verdicts(alone, "mine") == ["slower"] * 4
    assert not {"slower", "faster"} & set(verdicts(alone, "base") + verdicts(alone, "third"))
    (first, *_) = [one for one in alone.changes if one.key[2] == "mine"]
    assert first.remark.startswith("based on medians from another program's file, without samples")
    assert first.smallest > 0.04
    assert "slower" in verdicts(diff(imported(30, 6), imported(40, 6, 1.3)), "mine")


def test_two_samples_say_nothing_of_their_own_error():
    few = {"samples_ms": (1.0, 1.001), "rounds": (0, 1)}
    found = diff([make_run(30, change_time=few)], [make_run(31, change_time=few)])
    assert set(verdicts(found)) == {"unclear"}
    assert found.changes[0].low is None
    assert "fewer than three samples" in found.changes[0].remark
    assert not found.has_judged


def test_a_machine_in_uproar_is_unclear_not_an_alarm():
    def uproar(seed):
        return make_run(seed, cases=2, backends={"base": 1.0, "mine": 1.0}, offset=0.3, change_time={"noise": 0.2})

    for seed in range(60, 80, 2):
        found = diff([uproar(seed)], [uproar(seed + 1)])
        assert set(verdicts(found)) == {"unclear"}
        assert all(0.1 < one.smallest < float("inf") for one in found.changes)


def test_same_can_be_asked_to_mean_less():
    a, b = [make_run(16)], [make_run(17)]
    assert set(verdicts(diff(a, b, same_within=0.001))) == {"unclear"}
    assert set(verdicts(diff(a, b, same_within=0.2))) == {"same"}


# ── all rows together: the machine, or the code ────────────────────────────────────────────────────

ALONE = {"mine": 1.0}


@pytest.mark.parametrize("replicates", [1, 3])
@pytest.mark.parametrize(("backends", "source"), [(ALONE, "two"), (ALONE, "one"), (BACKENDS, "one")])
def test_all_rows_slower_beside_unmoved_yardsticks_are_the_code(replicates, backends, source):
    changed = dict.fromkeys(backends, 1.0)
    a = make_run(50, cases=12, backends=backends, factors=changed, yardsticks=1.0, replicates=replicates)
    b = make_run(
        51,
        cases=12,
        backends=backends,
        factors=changed,
        yardsticks=1.0,
        replicates=replicates,
        code=1.03,
        source=source,
        machine=0.99,
    )
    found = diff([a], [b])
    assert verdicts(found) == ["slower"] * 12 * len(backends)
    assert found.shift.cause == "code"
    assert found.shift.low < 0.03 < found.shift.high
    assert found.shift.change == pytest.approx(0.03, abs=0.004)
    assert found.shift.yardsticks == pytest.approx({"matmul": -0.01, "copy": -0.01}, abs=0.004)
    assert found.is_slower_throughout(0.02, machine_may_move=True)
    assert not found.is_slower_throughout(0.05)
    assert {one.key[2] for one in found.changes} == set(backends), "yardsticks are no rows"


@pytest.mark.parametrize("backends", [ALONE, BACKENDS])
def test_all_rows_slower_with_the_yardsticks_are_the_machine(backends):
    changed = dict.fromkeys(backends, 1.0)
    runs = [
        make_run(
            52 + at,
            cases=12,
            backends=backends,
            factors=changed,
            yardsticks=1.0,
            replicates=3,
            machine=machine,
            source=f"{at}",
        )
        for at, machine in enumerate((1.0, 1.035))
    ]
    found = diff(runs[:1], runs[1:])
    assert not {"slower", "faster"} & set(verdicts(found))
    assert (found.shift.cause, found.shift.shown) == ("machine", True)
    assert found.shift.change == found.shift.time_change == pytest.approx(0.035, abs=0.003)
    assert found.is_slower_throughout(0.03)
    assert not found.is_slower_throughout(0.03, machine_may_move=True)
    faster = diff(runs[1:], runs[:1]).shift
    assert (faster.cause, faster.change) == ("machine", pytest.approx(-0.034, abs=0.003))


def test_yardsticks_that_moved_apart_part_nothing():
    """A matmul 4 % slower and a copy that stayed: rows between the two may be either."""
    a, b = (
        make_run(
            54 + at,
            cases=12,
            backends=ALONE,
            factors={"mine": 1.0},
            code=code,
            yardsticks=1.0,
            replicates=3,
            source=f"{at}",
        )
        for at, code in enumerate((1.0, 1.02))
    )
    slower = {
        id(one): one.yardsticks
        | {
            "matmul": dataclasses.replace(
                one.yardsticks["matmul"], samples_ms=tuple(1.04 * ms for ms in one.yardsticks["matmul"].samples_ms)
            )
        }
        for one in b.records
    }
    b = dataclasses.replace(b, records=tuple(dataclasses.replace(one, yardsticks=slower[id(one)]) for one in b.records))
    found = diff([a], [b])
    assert not {"slower", "faster"} & set(verdicts(found))
    assert found.shift is None or found.shift.cause == "unknown"


def test_a_run_slower_throughout_is_not_the_same_without_yardsticks_either():
    found = diff([make_run(56)], [make_run(57, code=1.6)])
    assert found.shift.cause == "unknown"
    assert found.shift.change == pytest.approx(0.6, abs=0.02)
    assert found.is_slower_throughout(0.03)
    assert diff([make_run(58)], [make_run(59)]).shift is None


def test_one_backend_of_several_is_no_shift_of_all_rows():
    found = diff(
        [make_run(60, yardsticks=1.0, replicates=3)],
        [make_run(61, yardsticks=1.0, replicates=3, factors={"mine": 1.2}, source="two")],
    )
    assert found.shift is None
    assert verdicts(found, "mine") == ["slower"] * 4
    assert found.changes[0].references == ("other", "third", "fourth", "yardstick matmul", "yardstick copy")


def test_yardsticks_of_other_work_are_not_compared():
    a, b = make_run(62, backends=ALONE, yardsticks=1.0), make_run(63, backends=ALONE, yardsticks=1.0)
    other = {name: dataclasses.replace(one, flops=8) for name, one in b.records[0].yardsticks.items()}
    found = diff([a], [edit(b, lambda one: True, yardsticks=other)])
    assert all(not one.references for one in found.changes)


def test_yardsticks_can_be_the_only_reference_or_none():
    a, b = (make_run(64 + at, yardsticks=1.0, replicates=3) for at in range(2))
    assert {one.references for one in diff([a], [b], references=["yardsticks"]).changes} == {
        ("yardstick matmul", "yardstick copy")
    }
    assert all("yardstick copy" not in one.references for one in diff([a], [b], references=["base"]).changes)
    assert all(not one.references for one in diff([a], [b], references=[]).changes)
    with pytest.raises(UsageError, match="--reference=yardsticks is not known"):
        diff([make_run(66)], [make_run(67)], references=["yardsticks"])


def test_yardsticks_of_a_group_in_parts_stand_beside_every_part():
    """Rounds of a later part go on counting, and each record has the yardsticks of its own rounds."""

    def parted(run):
        later = {
            name: dataclasses.replace(one, rounds=tuple(40 + at for at in one.rounds))
            for name, one in run.records[0].yardsticks.items()
        }
        return edit(run, lambda one: one.backend == "mine", yardsticks=later)

    a, b = (
        parted(make_run(seed, cases=1, yardsticks=1.0, machine=machine)) for seed, machine in ((68, 1.0), (69, 1.1))
    )
    found = diff([a], [b])
    assert found.shift.yardsticks == pytest.approx({"matmul": 0.1, "copy": 0.1}, abs=0.01)


# ── one process a side ─────────────────────────────────────────────────────────────────────────────


def test_a_row_alone_may_be_luck_in_one_process_and_not_in_three():
    def one_row(seed, replicates, factor=1.0):
        run = make_run(seed, replicates=replicates, cases=6, yardsticks=1.0, factors={"mine": 1.0}, source=str(seed))
        return edit_time(run, lambda one: one.backend == "mine" and one.case_id == "s2", factor)

    def edit_time(run, match, factor):
        return dataclasses.replace(
            run,
            records=tuple(
                dataclasses.replace(
                    one, time=dataclasses.replace(one.time, samples_ms=tuple(factor * ms for ms in one.time.samples_ms))
                )
                if match(one)
                else one
                for one in run.records
            ),
        )

    alone = {one.key[1:3]: one for one in diff([one_row(70, 1)], [one_row(71, 1, 1.035)]).changes}["s2", "mine"]
    assert alone.verdict == "unclear"
    assert alone.low > 0.0, "its samples show it"
    assert re.fullmatch(
        r"\+3\.\d % with one process per side may be the difference between two processes; "
        "`--replicates 3`, .* tell",
        alone.remark,
    )
    assert alone.smallest > 0.04
    three = {one.key[1:3]: one.verdict for one in diff([one_row(72, 3)], [one_row(73, 3, 1.035)]).changes}
    assert three["s2", "mine"] == "slower"
    assert list(three.values()).count("slower") == 1


def test_many_rows_that_moved_together_are_no_luck():
    a, b = (
        make_run(seed, cases=12, factors={"mine": factor}, source=f"{seed}") for seed, factor in ((74, 1.0), (75, 1.03))
    )
    found = diff([a], [b])
    assert verdicts(found, "mine") == ["slower"] * 12
    assert set(verdicts(found)) == {"slower", "same"}
    assert {one.remark for one in found.changes if one.key[2] == "mine"} == {
        "one of the rows that moved together, by +3.0 % over 12 cases; alone it would be unclear"
    }


@pytest.mark.parametrize("replicates", [1, 3])
def test_half_of_the_rows_do_not_carry_the_others_along(replicates):
    both = {name: BACKENDS[name] for name in ("base", "mine")}
    found = diff(
        [make_run(76, cases=12, backends=both, replicates=replicates)],
        [make_run(77, cases=12, backends=both, replicates=replicates, factors={"mine": 1.04}, source="two")],
    )
    assert verdicts(found, "mine") == ["slower"] * 12
    assert not {"slower", "faster"} & set(verdicts(found, "base"))
    assert found.shift is None


def test_a_row_that_did_not_go_along_is_not_called():
    a, b = (
        make_run(seed, cases=12, factors={"mine": factor}, source=f"{seed}", replicates=3)
        for seed, factor in ((78, 1.0), (79, 1.03))
    )
    stayed = next(one for one in a.records if (one.backend, one.case_id) == ("mine", "s5"))
    b = edit(b, lambda one: (one.backend, one.case_id) == ("mine", "s5"), time=stayed.time)
    verdict = {one.key[1]: one.verdict for one in diff([a], [b]).changes if one.key[2] == "mine"}
    assert verdict.pop("s5") not in ("slower", "faster")
    assert set(verdict.values()) == {"slower"}


# ── clocks ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_slower_clock_is_not_slower_code():
    a, b = make_run(18, clock=1740.0), make_run(19, clock=1690.0)
    found = diff([a], [b])
    assert set(verdicts(found)) == {"same"}
    one = found.changes[0]
    assert one.clock_change == pytest.approx(1690 / 1740 - 1, abs=0.005)
    assert one.time_change > 0.02
    assert abs(one.cycles_change) < 0.01
    assert one.remark.startswith("slower clock, same cycles (clock -2.")
    assert any(note.startswith("the SM clock differed by -2.") for note in found.notes)


def test_a_change_is_seen_through_another_clock():
    a = make_run(21, clock=1740.0)
    found = diff([a], [make_run(22, clock=1690.0, factors={"mine": 1.05}, source="two")])
    assert verdicts(found, "mine") == ["slower"] * 4
    assert [one.change for one in found.changes if one.key[2] == "mine"] == pytest.approx([0.05] * 4, abs=0.015)


def test_cycles_that_rise_with_the_clock_while_the_time_stays_are_no_alarm():
    """A kernel that waits for memory takes more cycles at a higher clock, and no more time."""
    a = make_run(23, clock=1650.0)
    b = make_run(24, clock=1650.0, factors={"mine": 1.0}, source="two")
    own = [one for one in b.records if one.backend == "mine"]
    faster = {
        id(one): dataclasses.replace(
            one, time=dataclasses.replace(one.time, sm_mhz=tuple(1.1 * mhz for mhz in one.time.sm_mhz))
        )
        for one in own
    }
    found = diff([a], [dataclasses.replace(b, records=tuple(faster.get(id(one), one) for one in b.records))])
    assert not {"slower", "faster"} & set(verdicts(found, "mine"))
    (first, *_) = [one for one in found.changes if one.key[2] == "mine"]
    assert first.cycles_change > 0.08
    assert first.remark.startswith("other clock, same time")


def test_a_clock_that_one_side_did_not_read_corrects_nothing():
    found = diff([make_run(25, clock=1700.0)], [make_run(26)])
    assert set(verdicts(found)) == {"same"}
    assert {one.clock_change for one in found.changes} == {one.cycles_change for one in found.changes} == {None}


# ── what is not a verdict ──────────────────────────────────────────────────────────────────────────


def test_rows_of_one_side_and_rows_that_ended_otherwise_are_listed():
    a, b = make_run(27), make_run(28)
    a = dataclasses.replace(a, records=tuple(one for one in a.records if one.backend != "fourth"))
    b = dataclasses.replace(b, records=tuple(one for one in b.records if one.backend != "third"))
    b = edit(b, lambda one: one.backend == "mine", time=None, status=Status.OOM, reason="needs more")
    b = edit(
        b,
        lambda one: one.backend == "other" and one.case_id == "s0",
        time=None,
        status=Status.SKIPPED,
        reason="not installed",
    )
    found = diff([a], [b])
    assert {one.backend for one in found.removed} == {"third"}
    assert {one.backend for one in found.added} == {"fourth"}
    assert [(one.a.backend, one.b.status, one.is_regression) for one in found.turned] == [
        ("other", Status.SKIPPED, False),
        *[("mine", Status.OOM, True)] * 4,
    ]
    assert len(found.regressions()) == 4
    mended = diff([b], [a])
    assert not mended.regressions()
    assert len(mended.turned) == 5


def test_a_row_lost_in_one_process_is_lost_and_its_times_are_compared():
    b = edit(
        make_run(32, replicates=3),
        lambda one: one.backend == "mine" and one.replicate == 1,
        time=None,
        status=Status.CRASHED,
        reason="killed by SIGSEGV",
    )
    found = diff([make_run(31, replicates=3)], [b])
    assert len(found.regressions()) == 4
    assert [one.processes for one in found.changes if one.key[2] == "mine"] == [(3, 2)] * 4


def test_what_fails_is_slower_by_more_than_the_limit_and_shown():
    a, b = make_run(33, replicates=3), make_run(34, replicates=3, factors={"mine": 1.05}, source="two")
    found = diff([a], [b])
    assert len(found.slower_than(0.0)) == len(found.slower_than(0.03)) == 4
    assert found.slower_than(0.08) == []


def test_of_several_processes_the_largest_peak_counts():
    a, b = make_run(35, replicates=2), make_run(36, replicates=2)
    a, b = (
        edit(run, lambda one: one.replicate == 1, memory=Memory(peak_allocated_mb=peak))
        for run, peak in ((a, 10.0), (b, 70.0))
    )
    assert {one.memory_change_mb for one in diff([a], [b]).changes} == {6.0}
    b = edit(b, lambda one: one.replicate == 0, memory=Memory(peak_allocated_mb=None))
    assert {one.memory_change_mb for one in diff([a], [b]).changes} == {6.0}


def test_rows_are_in_the_order_of_a_not_of_cases():
    a = make_run(35)
    a = dataclasses.replace(a, records=tuple(sorted(a.records, key=lambda one: one.backend)))
    found = diff([a], [make_run(36)])
    assert [one.key for one in found.changes] == [key_of(one) for one in a.records]
    first = found.changes[0]
    assert (first.a, first.b.backend) == (a.records[0], a.records[0].backend)
    assert first.a_ms == pytest.approx(statistics.median(first.a.time.samples_ms))
    assert first.b_ms == pytest.approx(statistics.median(first.b.time.samples_ms))
    assert first.time_change == pytest.approx(first.b_ms / first.a_ms - 1)


def test_a_machine_is_said_once_where_both_sides_have_it():
    assert diff([make_run(37)], [make_run(38)]).machines == ("NVIDIA H200 · torch 2.11 · triton 3.6",)
    nothing = make_run(37, environments=()), make_run(38, environments=())
    bare = [edit(run, lambda one: True, environment=None) for run in nothing]
    assert diff(bare[:1], bare[1:]).machines == ()


def test_rows_that_ended_alike_without_a_time_are_of_a():
    lost = {"time": None, "status": Status.OOM}
    a = edit(make_run(43), lambda one: one.backend == "mine", reason="of A", **lost)
    b = edit(make_run(44), lambda one: one.backend == "mine", reason="of B", **lost)
    assert {one.reason for one in diff([a], [b]).untimed} == {"of A"}
    # A passed row without samples and figures has no time either.
    bare = dict.fromkeys(("median_ms", "mean_ms", "min_ms", "max_ms", "p95_ms", "p99_ms")) | {"samples_ms": ()}
    a = make_run(43)
    times = {id(one): dataclasses.replace(one.time, **bare, rounds=()) for one in a.records}
    b = dataclasses.replace(
        a, records=tuple(dataclasses.replace(one, time=times[id(one)]) for one in a.records), id="0000002c"
    )
    for sides in (a, b), (b, a), (b, dataclasses.replace(b, id="0000002d")):
        found = diff(*([one] for one in sides))
        assert (found.changes, len(found.untimed)) == ((), 20)


def test_yardsticks_beside_some_cases_are_a_reference():
    a, b = (edit(make_run(seed, yardsticks=1.0), lambda one: one.case_id == "s0", yardsticks={}) for seed in (45, 46))
    found = diff([a], [b], references=["yardsticks"])
    assert {one.references for one in found.changes if one.key[1] == "s0"} == {()}
    assert {one.references for one in found.changes if one.key[1] == "s1"} == {("yardstick matmul", "yardstick copy")}


def test_memory_is_compared():
    b = edit(make_run(36), lambda one: one.backend == "mine", memory=Memory(peak_allocated_mb=80.0))
    b = edit(b, lambda one: one.backend == "base", memory=None)
    found = diff([edit(make_run(35), lambda one: one.backend == "other", memory=None)], [b])
    assert {one.key[2]: one.memory_change_mb for one in found.changes} == {
        "base": None,
        "other": None,
        "third": 0.0,
        "fourth": 0.0,
        "mine": 16.0,
    }


@pytest.mark.parametrize(
    ("name", "changed"), [("timer", {"timer": "events"}), ("l2", {"l2": "warm"}), ("regime", {"regime": "sustained"})]
)
def test_times_that_were_taken_otherwise_are_refused_unless_told(name, changed):
    a, b = [make_run(37)], [make_run(38, change_time=changed)]
    with pytest.raises(
        UsageError,
        match=rf"^attnbench diff: {name}=\w+, {next(iter(changed.values()))} differ between "
        rf"A and B \(s0 base\); times taken alike; or say --across {name}$",
    ):
        diff(a, b)
    assert diff(a, b, across=[name]).changes
    with pytest.raises(UsageError, match="differ within B"):
        diff(a, [a[0], *b])


def test_cards_and_inputs_are_conditions_too():
    other = dataclasses.replace(CARD, gpu="NVIDIA B200", gpu_uuid="GPU-9", triton="3.7")
    with pytest.raises(UsageError, match="card=NVIDIA H200, NVIDIA B200 differ"):
        diff([make_run(39)], [make_run(40, environments=(other,))])
    with pytest.raises(UsageError, match="input=normal, zeros differ"):
        diff([make_run(39)], [make_run(40, settings=Settings(device="cuda", input="zeros"))])
    found = diff([make_run(39)], [make_run(40, environments=(other,))], across=["card"])
    assert [note.split(":")[0] for note in found.notes[-2:]] == ["different card", "different Triton"]
    assert found.machines == ("A NVIDIA H200 · torch 2.11 · triton 3.6", "B NVIDIA B200 · torch 2.11 · triton 3.7")


def test_runs_with_nothing_in_common_are_refused():
    a, b = make_run(41, backends={"old": 1.0}), make_run(42, backends={"new": 1.0})
    with pytest.raises(
        UsageError,
        match=r"RUN=00000029 and 0000002a have no case and backend in common "
        r"\(A has old, B has new\); two runs of one suite",
    ):
        diff([a], [b])
    many = make_run(41, backends=dict.fromkeys("edcba", 1.0))
    with pytest.raises(UsageError, match=r"\(A has a, b, c, B has new\)"):
        diff([many], [b])
    with pytest.raises(UsageError, match="A has no row"):
        diff([dataclasses.replace(a, records=())], [b])


def test_rows_that_never_had_a_time_leave_a_diff_of_outcomes():
    lost = [edit(make_run(43), lambda one: True, time=None, status=Status.OOM, reason="needs more")]
    found = diff([make_run(44)], lost)
    assert found.changes == ()
    assert len(found.regressions()) == 20
    assert found.untimed == (), "they ended otherwise"
    one_lost = edit(make_run(43), lambda one: one.backend == "mine", time=None, status=Status.OOM, reason="needs more")
    untimed = diff([one_lost], [one_lost]).untimed
    assert [record.backend for record in untimed] == ["mine"] * 4


def test_a_sample_of_0_ms_and_rounds_in_parts_do_no_harm():
    def parts(seed, **changed):
        run = make_run(seed, cases=3, **changed)
        times = {
            one: dataclasses.replace(
                one.time,
                samples_ms=(0.0, *one.time.samples_ms[1:]),
                rounds=tuple(at + (100 if one.backend in ("third", "fourth") else 0) for at in one.time.rounds),
            )
            for one in map(_Held, run.records)
        }
        return dataclasses.replace(
            run, records=tuple(dataclasses.replace(one.record, time=time) for one, time in times.items())
        )

    found = diff([parts(45)], [parts(46, factors={"mine": 1.08}, source="two")])
    assert verdicts(found, "mine") == ["slower"] * 3


class _Held:
    """A record by identity: some hold what cannot be hashed."""

    def __init__(self, record):
        self.record, self.backend, self.time = record, record.backend, record.time


def test_rows_that_another_gpu_measured_have_no_verdict_unless_told():
    """Two GPUs of one model differ by per cents: the same code on the other one is no change of the code."""
    cards = CARD, dataclasses.replace(CARD, gpu_uuid="GPU-1")
    a = make_run(51, cases=4, environments=cards)
    b = make_run(52, cases=4, environments=cards)
    moved = {"s0", "s1"}
    b = dataclasses.replace(
        b, records=tuple(dataclasses.replace(one, environment=int(one.case_id in moved)) for one in b.records)
    )
    found = diff([a], [b])
    assert {one.case_id for one in found.elsewhere} == moved
    assert {one.a.case_id for one in found.changes} == {"s2", "s3"}
    assert not [note for note in found.notes if "another card" in note]
    told = diff([a], [b], across=["gpu"])
    assert told.elsewhere == ()
    assert len(told.changes) == 4 * len(BACKENDS)
    # Of a file that knows no GPU nothing is held back.
    unknown = dataclasses.replace(b, environments=tuple(dataclasses.replace(one, gpu_uuid=None) for one in cards))
    assert diff([a], [unknown]).elsewhere == ()
