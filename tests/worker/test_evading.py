"""A backend that hides its work, or detects the inspection, has no time either."""

from __future__ import annotations

import re
import time

import evading
import odd
import pytest
from cheating import HonestSteps
from small_runs import FAKES
from test_cheats import LARGE, LATE, LONG, NEW_DATA, TOTAL, UNTIMED, carried_out, ended, verdict

from attnbench.check import inspection
from attnbench.check.inspection import Inspection
from attnbench.check.looks import Look, suspicion
from attnbench.check.reference import References
from attnbench.record import Status
from attnbench.workloads.base import load_workload

FILES = [str(FAKES / "evading.py"), str(FAKES / "cheating.py")]
DECODING = {"batch": 2, "seqlen": 1, "seqlen_k": 4096, "nheads": 8, "headdim": 64, "causal": True, "dtype": "fp32"}

RECORDED = r"a call on data it has not seen takes .*, a recorded one .*: its samples are not the time of its work"
EXPECTED = {
    evading.WhenTaken: f"{LATE}|{TOTAL}",
    evading.WhenAnOperatorReads: f"{LATE}|{NEW_DATA}|{TOTAL}",
    evading.LooksAtCallers: f"{RECORDED}|{TOTAL}",
    evading.WrongWhenRecorded: "in a recorded sample: out: wrong values: .*",
    evading.RoughForKnownData: "in a (timed call on known data|recorded sample): out: wrong values: .*",
    evading.DecodesInOutputs: UNTIMED.format("outputs").replace("copy of", "copy of the outputs") + f"|{LATE}|{TOTAL}",
    # On a loaded machine a third alone may be over the limit.
    evading.APartInEach: r"(outputs and reload and reset together|outputs|reload|reset) takes? .*, a copy of .*: "
    "work is done outside the sample",
    evading.WideBudget: r"budget: factor=1e\+09, relative=0 accepts zeros for out: it holds them to nothing",
}


@pytest.mark.parametrize("plan", [{}, {"warmup": 1, "iterations": 12}], ids=["until-known", "counted"])
@pytest.mark.parametrize("kind", EXPECTED, ids=lambda kind: kind.name)
def test_who_evades_is_told_so(kind, plan):
    said = verdict(kind(), DECODING if kind is evading.DecodesInOutputs else LONG, **plan)
    assert re.fullmatch(EXPECTED[kind], said or "", re.DOTALL)


def test_a_pause_in_the_call_that_is_looked_at_lets_nobody_off(monkeypatch):
    """A call that took 5 ms once is looked at as often as any short one; one that always takes 50 ms is not."""
    monkeypatch.setattr("attnbench.check.inspection.suspicion", lambda looks, kind: None)
    backend, workload = evading.DecodesInOutputs(), load_workload("attention")
    case = workload.case(DECODING)
    first, second = (workload.inputs(case, seed=seed, kind="normal", device="cpu") for seed in (1, 2))
    for recorded_ms, usual_ms, again in ((5.0, 5.0, True), (5.0, 50.0, True), (50.0, 5.0, True), (50.0, 50.0, False)):
        with backend.session(case, first) as launch:
            looking = Inspection(
                launch, References(workload, case, first, second), variant="softmax", budget=backend.budget(case)
            )
            looking.disturb()
            launch.forward()
            looking.prepare()
            launch.forward()
            assert looking.finish(recorded_ms, usual_ms, usual_ms, 50.0, 0.0) is None
            assert looking.undecided == again


def test_a_pause_while_outputs_are_read_again_does_not_shorten_the_call(monkeypatch):
    """One look with a call of no length would clear a launch for good: its rules compare smallest values."""
    seen = []
    monkeypatch.setattr("attnbench.check.inspection.suspicion", lambda looks, kind: seen.extend(looks))
    backend, workload = HonestSteps(), load_workload("attention")
    case = workload.case(LARGE)
    first, second = (workload.inputs(case, seed=seed, kind="normal", device="cpu") for seed in (1, 2))
    with backend.session(case, first) as launch:
        terms = {"variant": "softmax", "budget": backend.budget(case)}
        looking = Inspection(launch, References(workload, case, first, second), **terms)
        launch.forward()
        looking.disturb()
        launch.forward()
        looking.prepare()
        launch.forward()
        time.sleep(0.02)
        pauses_s, read = iter([0.0, 0.2]), inspection._taken
        monkeypatch.setattr(inspection, "_taken", lambda it: (read(it), time.sleep(next(pauses_s, 0.0)))[0])
        assert looking.finish(0.1, 0.1, 0.1, 0.1, 0.0) is None
    assert seen[-1].whole > 20.0


def test_who_reads_keys_and_values_once_in_its_call_is_left_alone():
    assert verdict(HonestSteps(), DECODING) is None


@pytest.mark.usefixtures("forked_workers")
def test_functions_of_the_harness_that_are_replaced_say_nothing_and_others_are_measured():
    run = carried_out(LARGE, ("honest-steps", "replaces-the-comparison", "replaces-the-clock"), files=FILES)
    found = ended(run)
    assert found["honest-steps"] == ("passed", None)
    assert found["replaces-the-comparison"] == (
        "incorrect",
        "replaces functions of the harness that examines it: attnbench.check.examine.compare",
    )
    assert found["replaces-the-clock"] == (
        "failed",
        "while it was sampled functions of the harness were replaced: time.perf_counter_ns",
    )
    [honest] = [record for record in run.records if record.status is Status.PASSED]
    assert honest.time is not None


@pytest.mark.usefixtures("forked_workers")
def test_limits_of_the_harness_that_are_replaced_are_put_back():
    found = ended(carried_out(LARGE, ("honest-steps", "widens-the-limits"), files=FILES))
    assert found["honest-steps"] == ("passed", None)
    said = "replaces functions of the harness that examines it: attnbench.check.looks.SLOWER.cpu"
    assert found["widens-the-limits"] == ("incorrect", said)


@pytest.mark.usefixtures("forked_workers")
def test_a_file_that_changes_the_harness_when_it_is_imported_changes_no_time():
    run = carried_out(LARGE, ("honest-steps", "replaces-on-import"), files=[*FILES, str(FAKES / "replacing.py")])
    found = ended(run)
    assert found["honest-steps"] == ("passed", None)
    status, reason = found["replaces-on-import"]
    assert status == Status.INCORRECT
    assert re.fullmatch(f"{NEW_DATA}|{TOTAL}", reason, re.DOTALL)
    [honest] = [record for record in run.records if record.status is Status.PASSED]
    assert honest.time is not None
    assert honest.time.median_ms > 1e-3
    noted = {note for record in run.records for note in record.notes}
    assert "global left changed: function attnbench.measure.timers.wall._timed" in noted
    looks = "attnbench.check.looks"
    assert (
        f"global left changed: constant {looks}.RECORDED, {looks}.SLOWER.cpu, attnbench.measure.timers.wall.time"
        in noted
    )


# ── limits, by looks with known times ──────────────────────────────────────────────────────────────


def looks(count: int, **times: float) -> list[Look]:
    usual = {"recorded": 1.0, "repeated": 1.0, "ordinary": 1.0, "new": 1.0, "whole": 1.0, "copies": 0.01}
    return [Look(**{"untimed": {"outputs": 0.0}} | usual | times) for _ in range(count)]


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_a_look_may_take_twice_a_recorded_sample_and_what_its_caches_cost(kind):
    beside = {"repeated": 5.0, "ordinary": 5.0}
    assert suspicion(looks(12, new=2.0, whole=2.0, **beside), kind) is None
    assert suspicion(looks(12, new=2.0, whole=2.0, recorded=None, **beside), kind) is None
    found = suspicion(looks(12, new=2.1, whole=2.1, **beside), kind)
    assert found is not None
    assert found.certain
    assert re.fullmatch(RECORDED, found.words)
    assert suspicion(looks(12, new=2.1, whole=2.1, **beside, copies=0.1), kind) is None


def test_a_few_recorded_samples_that_are_short_are_no_proof():
    found = looks(11, new=3.0, whole=3.0, recorded=3.0, repeated=3.0, ordinary=3.0) + looks(
        1, new=3.0, whole=3.0, recorded=0.1, repeated=3.0, ordinary=3.0
    )
    said = suspicion(found, "cpu")
    assert said is not None
    assert not said.certain


def test_outputs_are_held_to_copies_of_themselves():
    taken = {"untimed": {"outputs": 0.5 + 0.1 + 10 * 0.02 + 0.01}, "output_copies": 0.02, "copies": 1.0}
    found = suspicion(looks(12, **taken), "cpu")
    assert found is not None
    assert found.words.startswith("outputs takes 810 µs, a copy of the outputs 20 µs, a call 1 ms")
    assert suspicion(looks(12, **{**taken, "output_copies": 0.03}), "cpu") is None


def test_calls_that_are_not_timed_may_not_take_half_a_call_each():
    within = {"reload": 0.29, "reset": 0.29, "outputs": 0.29}
    assert suspicion(looks(12, untimed=within, copies=0.01, output_copies=0.01), "cpu") is None
    found = suspicion(looks(12, untimed=dict.fromkeys(within, 0.4), copies=0.01, output_copies=0.01), "cpu")
    assert found is not None
    assert found.words.startswith(
        "outputs and reload and reset together take 1.2 ms, a copy of all inputs and outputs 30"
    )
    assert suspicion(looks(12, untimed=within | {"reload": 0.59}, copies=0.03, output_copies=0.01), "cpu") is None


@pytest.mark.parametrize(
    ("first", "second", "late"),
    [(0.2, 0.001, True), (0.2, 0.2, False), (0.025, 0.001, False)],
    ids=["late", "as long again", "cold"],
)
def test_outputs_are_called_late_only_if_that_is_what_takes_the_time(first, second, late):
    short = {"recorded": 0.02, "repeated": 0.02, "ordinary": 0.02, "new": 0.022, "whole": 0.5}
    found = suspicion(
        looks(12, **short, first=first, untimed={"outputs": second}, copies=0.02, output_copies=0.02), "cpu"
    )
    assert found is not None
    assert found.words.startswith("unfinished work" if late else "a call on data it has not seen takes")


# ── who is honest in an odd way ────────────────────────────────────────────────────────────────────

ODD = [kind for kind in vars(odd).values() if isinstance(kind, type) and kind.__module__ == odd.__name__]


@pytest.mark.parametrize("kind", ODD, ids=lambda kind: kind.name)
def test_the_odd_are_left_alone(kind):
    assert verdict(kind(), LARGE) is None
