"""The backend that is blamed for a lost worker, with scripted workers: no process, no sampling."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import pytest
from small_runs import by_name, small_run

from attnbench.errors import NothingToRun
from attnbench.record import Environment, Record, Status, Time
from attnbench.store.runfile import dumps, loads
from attnbench.sweep import device_worker
from attnbench.sweep.group import APART, BY_ITSELF, MOST_LOSSES
from attnbench.sweep.run import execute, without_interrupted
from attnbench.worker.activity import HARNESS, Activity
from attnbench.worker.parts import SEVERAL
from attnbench.worker.process import Loss

NAMES = ("honest", "a", "b")


def lost(who: int, phase: str, status: Status = Status.CRASHED, **more) -> Loss:
    return Loss(status, Activity(9, who, phase), f"lost during {phase} in /some/place/x.py", **more)


def killed(who: int, signal: str = "SIGKILL") -> Loss:
    return Loss(Status.CRASHED, Activity(9, who, "sample"), f"killed by {signal} during sample", outside=True)


def passed(group, name: str, ms: float, count: int = 8) -> Record:
    samples = tuple(round(ms * (1 + 0.001 * index), 6) for index in range(count))
    time = Time(
        timer="wall",
        l2="warm",
        regime="cpu",
        stopped_by="iterations",
        num_samples=count,
        median_ms=ms,
        mean_ms=ms,
        min_ms=ms,
        max_ms=ms,
        p95_ms=ms,
        p99_ms=ms,
        samples_ms=samples,
        rounds=tuple(range(count)),
        at_s=tuple(round(0.1 * index, 6) for index in range(count)),
    )
    return Record(
        workload="attention",
        case=group.case,
        case_id=group.case_id,
        group=group.group,
        backend=name,
        replicate=group.replicate,
        status=Status.PASSED,
        time=time,
    )


@dataclass
class Script:
    """What the workers of a run do, request by request; `asked` is what they were asked for."""

    steps: list
    starts: list = field(default_factory=list)
    asked: list = field(default_factory=list)
    workers: int = 0
    fresh: list = field(default_factory=list)
    "for each request whether its process was asked for nothing before"
    used: bool = False
    clock: float = 1.0
    files: tuple = ()

    def __call__(self, device: str) -> Script:
        self.workers += 1
        self.used = False
        return self

    environment = Environment(os="Linux", python="3.11")

    def start(self):
        return self.starts.pop(0) if self.starts else None

    def close(self):
        pass

    def measure(self, group, settings, files, *, on_record, on_activity):
        """Each step is (names whose records are sent, how it ends); after the last all pass."""
        self.asked.append(group.backends)
        self.fresh.append(not self.used)
        self.used = True
        sent, end = self.steps.pop(0) if self.steps else (group.backends, 1.0)
        self.clock *= 2  # every sitting finds another clock: ratios across sittings would be off by it
        for name in sent:
            status = Status.PASSED
            name, status, *why = name if isinstance(name, tuple) else (name, status)
            speed = {"honest": 4.0, "a": 2.0, "b": 1.0}[name]
            record = passed(group, name, speed * self.clock)
            if status is not Status.PASSED:
                reason = why[0] if why else "it was made to"
                record = dataclasses.replace(record, status=status, time=None, reason=reason)
            on_record(record)
        return end


@pytest.fixture
def scripted(monkeypatch):
    def carry_out(*steps, starts=(), run=None):
        script = Script(list(steps), list(starts))
        monkeypatch.setattr(device_worker, "Worker", script)
        events = []
        done = execute(run or small_run(NAMES), on_event=events.append)
        assert max(event.done for event in events) == len(done.records)
        assert [event.done for event in events if event.kind == "group"] == [
            sum(len(group.backends) for group in done.plan[: number + 1]) for number in range(len(done.plan))
        ]
        assert loads(dumps(done)) == done, "what is written is what is read, ratios included"
        return script, by_name(done, len(done.plan) - 1)

    return carry_out


def ratios(found) -> dict[str, float | None]:
    return {name: found[name].speedup and round(found[name].speedup.ratio, 6) for name in ("a", "b")}


def test_all_in_one_sitting(scripted):
    script, found = scripted()
    assert script.asked == [NAMES]
    assert ratios(found) == {"a": 2.0, "b": 4.0}


def test_who_fails_alone_too_has_that_record_and_who_passed_is_measured_again(scripted):
    script, found = scripted((["honest"], lost(1, "check: after timing")), ([], lost(0, "first call")))
    assert script.asked == [NAMES, ("a",), ("honest", "b")]
    assert script.workers == 3
    assert (found["a"].status, found["a"].reason) == (Status.CRASHED, "lost during first call in x.py")
    assert found["a"].repro.startswith("attnbench compare ")
    assert "--backends honest,a --device cpu" in found["a"].repro
    assert found["a"].environment == 0
    assert ratios(found) == {"a": None, "b": 4.0}, "within one sitting"


@pytest.mark.parametrize("status", [Status.INCORRECT, Status.FAILED, Status.OOM])
def test_a_record_that_convicts_is_tried_alone_and_the_others_keep_theirs(scripted, status):
    script, found = scripted((["honest", ("a", status), "b"], 1.0), ([("a", status, "alone")], 1.0))
    assert script.asked == [NAMES, ("a",)]
    assert script.fresh == [True, True]
    assert (found["a"].status, found["a"].reason) == (status, "alone")
    assert ratios(found) == {"a": None, "b": 4.0}


def test_a_refusal_is_no_conviction(scripted):
    script, found = scripted((["honest", ("a", Status.SKIPPED), "b"], 1.0))
    assert script.asked == [NAMES]
    assert found["a"].status is Status.SKIPPED


def test_the_first_and_only_one_in_its_process_needs_no_second_trial(scripted):
    script, _ = scripted(([("a", Status.INCORRECT)], 1.0), ([], lost(0, "set-up")), run=small_run(["a"], ["a"]))
    assert script.asked == [("a",), ("a",)]


def test_who_was_in_a_process_in_an_earlier_group_was_there(scripted):
    script, _ = scripted(
        (["b"], 1.0), ([("a", Status.INCORRECT)], 1.0), ([("a", Status.INCORRECT)], 1.0), run=small_run(["b"], ["a"])
    )
    assert script.asked == [("b",), ("a",), ("a",)]
    assert script.fresh == [True, False, True]


def test_an_exception_seen_alone_is_believed_when_it_comes_again_with_other_numbers(scripted):
    def raised(size: int):
        return ("a", Status.FAILED, f"ValueError during set-up: head of size {size}")

    script, _ = scripted(
        (["honest", raised(16), "b"], 1.0),
        ([raised(16)], 1.0),
        (["honest", raised(32), "b"], 1.0),
        run=small_run(NAMES, NAMES),
    )
    assert script.asked == [NAMES, ("a",), NAMES]
    script, _ = scripted(
        (["honest", raised(16), "b"], 1.0),
        ([raised(16)], 1.0),
        (["honest", ("b", Status.FAILED, raised(16)[2]), "a"], 1.0),
        run=small_run(NAMES, NAMES),
    )
    assert script.asked[:4] == [NAMES, ("a",), NAMES, ("b",)], "another backend may be innocent of the same words"


def test_a_wrong_answer_is_tried_each_time(scripted):
    wrong = (["honest", ("a", Status.INCORRECT), "b"], 1.0), ([("a", Status.INCORRECT)], 1.0)
    script, _ = scripted(*wrong, *wrong, run=small_run(NAMES, NAMES))
    assert script.asked == [NAMES, ("a",)] * 2


def test_what_all_fail_alike_is_tried_once(scripted):
    script, found = scripted(([(name, Status.FAILED) for name in NAMES], 1.0), ([("honest", Status.FAILED)], 1.0))
    assert script.asked == [NAMES, ("honest",)]
    assert {record.status for record in found.values()} == {Status.FAILED}
    script, found = scripted(([(name, Status.FAILED) for name in NAMES], 1.0))
    assert script.asked[:3] == [NAMES, ("honest",), ("honest",)]
    assert {record.status for record in found.values()} == {Status.PASSED}, "somebody harmed all of them"


def test_what_did_not_pass_is_not_measured_again(scripted):
    script, found = scripted(
        ([("honest", Status.INCORRECT)], lost(2, "set-up")),
        ([("honest", Status.INCORRECT)], 1.0),
        ([], lost(0, "set-up")),
    )
    assert script.asked == [NAMES, ("honest",), ("b",), ("a",)]
    assert [found[name].status.value for name in NAMES] == ["incorrect", "passed", "crashed"]


def test_an_innocent_is_measured_beside_the_baseline_as_all_others(scripted):
    script, found = scripted(([], lost(2, "set-up")), (["b"], 1.0))
    assert script.asked == [NAMES, ("b",), ("honest",), ("honest", "a"), ("honest", "b")]
    assert script.fresh == [True] * 5, "each in a process of its own"
    assert ratios(found) == {"a": 2.0, "b": 4.0}, "each with the baseline of its own sitting"
    assert found["honest"].time.num_samples == 24
    assert found["honest"].time.rounds == tuple(range(24))
    assert found["a"].time.rounds == tuple(range(8, 16))
    assert found["honest"].notes == (APART, SEVERAL)
    assert {APART in record.notes for record in found.values()} == {True}
    assert found["b"].notes[1] == "passes alone; in a process with others: crashed: lost during set-up in x.py"


def test_after_harm_the_next_group_has_a_fresh_process(scripted):
    script, _ = scripted(([], lost(2, "set-up")), (["b"], 1.0), run=small_run(NAMES, NAMES))
    assert script.asked[5:] == [NAMES]
    assert script.fresh[5:] == [True]


def test_a_guilty_one_among_innocents_is_convicted_and_they_are_not(scripted):
    script, found = scripted(
        ([("honest", Status.INCORRECT), ("a", Status.INCORRECT), "b"], 1.0),
        (["honest"], 1.0),
        ([("a", Status.INCORRECT, "changed inputs: k")], 1.0),
    )
    assert script.asked == [NAMES, ("honest",), ("a",), ("honest",), ("honest", "b")]
    assert [found[name].status.value for name in NAMES] == ["passed", "incorrect", "passed"]
    assert found["a"].reason == "changed inputs: k"
    assert ratios(found) == {"a": None, "b": 4.0}


def test_who_fails_beside_the_baseline_alone_is_measured_without_it_and_says_so(scripted):
    script, found = scripted(
        ([], lost(1, "sample")),
        (["a"], 1.0),
        (["honest"], 1.0),
        ([], lost(1, "sample")),
        (["a"], 1.0),
        (["honest", ("b", Status.INCORRECT)], 1.0),
        ([("b", Status.INCORRECT)], 1.0),
    )
    assert script.asked[2:] == [("honest",), ("honest", "a"), ("a",), ("honest", "b"), ("b",)]
    assert [found[name].status.value for name in NAMES] == ["passed", "passed", "incorrect"]
    assert ratios(found) == {"a": None, "b": None}, "no round in common with the baseline"
    assert "measured without honest: in one process with it, a crashed: lost during sample in x.py" in found["a"].notes


def test_a_baseline_that_is_harmed_in_a_pair_keeps_its_own_record(scripted):
    script, found = scripted(
        (["a", ("honest", Status.INCORRECT), "b"], 1.0),
        (["honest"], 1.0),
        (["honest"], 1.0),
        ([("honest", Status.INCORRECT), "a"], 1.0),
        (["a"], 1.0),
    )
    assert script.asked[2:] == [("honest",), ("honest", "a"), ("a",), ("honest", "b")]
    assert {record.status for record in found.values()} == {Status.PASSED}
    assert ratios(found) == {"a": None, "b": 4.0}
    assert "measured without honest: in one process with it, honest incorrect: it was made to" in found["a"].notes


def test_a_baseline_with_no_time_is_beside_nobody(scripted):
    script, found = scripted(([], lost(1, "sample")), (["a"], 1.0), ([("honest", Status.FAILED)], 1.0))
    assert script.asked[2:] == [("honest",), ("a",), ("b",)]
    assert found["honest"].status is Status.FAILED


def test_a_death_in_closing_holds_against_a_time_and_not_against_a_reason(scripted):
    script, found = scripted((NAMES, lost(1, "closing")), (["a"], lost(0, "closing")))
    assert script.asked == [NAMES, ("a",)]
    assert [found[name].status.value for name in NAMES] == ["passed", "crashed", "passed"]
    assert ratios(found) == {"a": None, "b": 4.0}
    wrong = ("a", Status.INCORRECT)
    script, found = scripted((["honest", wrong], lost(1, "closing")), ([wrong], lost(0, "closing")))
    assert script.asked == [NAMES, ("a",), ("honest", "b")]
    assert found["a"].status is Status.INCORRECT


def test_nobody_to_blame_is_tried_again_and_given_up_in_the_end(scripted):
    script, found = scripted((["honest"], lost(HARNESS, "idle")))
    assert script.asked == [NAMES, NAMES]
    assert ratios(found) == {"a": 2.0, "b": 4.0}
    given_up = [([], lost(HARNESS, "oracle"))] * (MOST_LOSSES + 1)
    script, found = scripted(([("a", Status.SKIPPED)], lost(HARNESS, "oracle")), *given_up)
    assert [found[name].status.value for name in NAMES] == ["crashed", "skipped", "crashed"]
    assert script.asked[MOST_LOSSES:] == [("honest",), ("b",)], "two are tried alone"


def test_nobody_to_blame_and_one_that_passes_alone_has_each_measured_apart(scripted):
    script, found = scripted(*[([], lost(HARNESS, "idle"))] * MOST_LOSSES)
    assert script.asked[MOST_LOSSES] == ("honest",)
    assert {record.status for record in found.values()} == {Status.PASSED}
    assert all(APART in record.notes for record in found.values())


def test_a_harness_that_hangs_is_not_waited_for_again(scripted):
    script, found = scripted(([], lost(HARNESS, "oracle", Status.TIMEOUT)))
    assert script.asked == [NAMES]
    assert {(record.status, record.reason) for record in found.values()} == {
        (Status.TIMEOUT, "lost during oracle in x.py")
    }


def test_a_worker_that_never_starts(scripted):
    with pytest.raises(NothingToRun, match=r"^worker: device=cpu cannot be measured; lost during start in x.py"):
        scripted(starts=[lost(HARNESS, "start")])
    run = small_run(NAMES, NAMES)
    script, found = scripted(
        (NAMES, 1.0), run=dataclasses.replace(run, environments=(Script.environment,)), starts=[lost(HARNESS, "start")]
    )
    assert script.workers == 2
    assert {record.status for record in found.values()} == {Status.PASSED}


def test_a_suspect_whose_trial_nobody_spoilt_is_not_condemned(scripted):
    script, found = scripted(([], lost(1, "sample")), ([], lost(HARNESS, "inputs")))
    assert script.asked[:3] == [NAMES, ("a",), ("honest",)]
    assert {record.status for record in found.values()} == {Status.PASSED}


# ── signals from outside ───────────────────────────────────────────────────────────────────────────


def test_a_signal_from_outside_is_nobodys_doing_the_first_time(scripted):
    script, found = scripted((["honest"], killed(1)))
    assert script.asked == [NAMES, NAMES]
    assert ratios(found) == {"a": 2.0, "b": 4.0}, "together, as if nothing had been"
    script, found = scripted(([], killed(0)), run=small_run(["a"]))
    assert script.asked == [("a",), ("a",)], "alone too"


def test_who_is_killed_every_time_has_the_record_and_is_measured_again_on_resuming(scripted):
    script, found = scripted(*[([], killed(1, "SIGTERM"))] * 2, *[([], killed(0, "SIGTERM"))] * 2)
    assert script.asked == [NAMES, NAMES, ("a",), ("a",), ("honest", "b")]
    assert (found["a"].status, found["a"].reason) == (Status.CRASHED, "killed by SIGTERM during sample")
    run = dataclasses.replace(small_run(NAMES), records=tuple(found.values()))
    assert [record.backend for record in without_interrupted(run).records] == ["honest", "b"]


@pytest.mark.parametrize(
    ("reason", "kept"),
    [
        ("killed by SIGKILL during sample", False),
        ("killed by SIGHUP during sample; its last line was: x", False),
        ("killed by SIGSEGV during sample", True),
        ("killed by SIGABRT during sample", True),
        ("ended the process with exit code 1 during sample; its last line was: killed by SIGKILL during", True),
    ],
)
def test_a_crash_of_its_own_stays_when_a_run_is_resumed(reason, kept):
    run = small_run(NAMES)
    record = dataclasses.replace(passed(run.plan[0], "a", 1.0), status=Status.CRASHED, time=None, reason=reason)
    assert bool(without_interrupted(dataclasses.replace(run, records=(record,))).records) == kept


# ── what cannot be put back, what is no record ─────────────────────────────────────────────────────


def test_who_leaves_what_cannot_be_put_back_is_measured_by_himself(scripted):
    script, found = scripted((["honest"], lost(1, "set-up", Status.FAILED, stuck=True)))
    assert script.asked == [NAMES, ("honest", "b"), ("a",)]
    assert script.fresh == [True] * 3
    assert {record.status for record in found.values()} == {Status.PASSED}
    assert found["a"].notes == (BY_ITSELF,)
    assert ratios(found) == {"a": None, "b": 4.0}


def test_what_somebody_left_while_all_were_sampled_has_each_measured_apart(scripted):
    stuck = lost(HARNESS, "sampling", Status.FAILED, stuck=True)
    script, found = scripted(([], stuck), (["honest"], 1.0), (["honest", "a"], 1.0), ([], stuck))
    assert script.asked == [NAMES, ("honest",), ("honest", "a"), ("honest", "b"), ("b",)]
    assert ratios(found) == {"a": 2.0, "b": None}


def test_a_request_done_without_all_its_records_is_a_loss(scripted):
    script, found = scripted((["honest", "b"], 1.0), ([], 1.0))
    assert script.asked == [NAMES, ("a",)]
    assert (found["a"].status, found["a"].reason) == (
        Status.CRASHED,
        "the worker said it was done and has no record of a",
    )
