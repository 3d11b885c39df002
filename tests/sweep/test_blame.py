"""Who gets the record when a worker is lost, by scripted workers: no process, no sampling."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import pytest
from small_runs import by_name, small_run

from attnbench.errors import NothingToRun
from attnbench.record import Environment, Record, Status, Time
from attnbench.store.runfile import dumps, loads
from attnbench.sweep import run as sweep
from attnbench.sweep.run import APART, MOST_LOSSES, execute
from attnbench.worker.blame import HARNESS, Word
from attnbench.worker.parts import SEVERAL
from attnbench.worker.process import Loss

NAMES = ("honest", "a", "b")


def lost(who: int, phase: str, status: Status = Status.CRASHED) -> Loss:
    return Loss(status, Word(9, who, phase), f"lost during {phase} in /some/place/x.py")


def passed(group, name: str, ms: float, count: int = 8) -> Record:
    samples = tuple(round(ms * (1 + 0.001 * index), 6) for index in range(count))
    time = Time(timer="wall", l2="warm", regime="cpu", stopped_by="iterations", num_samples=count, median_ms=ms,
                mean_ms=ms, min_ms=ms, max_ms=ms, p95_ms=ms, p99_ms=ms, samples_ms=samples,
                rounds=tuple(range(count)), at_s=tuple(round(0.1 * index, 6) for index in range(count)))
    return Record(workload="attention", case=group.case, case_id=group.case_id, group=group.group, backend=name,
                  replicate=group.replicate, status=Status.PASSED, time=time)


@dataclass
class Script:
    """What the workers of a run do, request by request; `asked` is what they were asked for."""

    steps: list
    starts: list = field(default_factory=list)
    asked: list = field(default_factory=list)
    workers: int = 0
    clock: float = 1.0
    files: tuple = ()

    def __call__(self, device: str) -> Script:
        self.workers += 1
        return self

    environment = Environment(os="Linux", python="3.11")

    def start(self):
        return self.starts.pop(0) if self.starts else None

    def close(self):
        pass

    def measure(self, group, settings, files, *, on_record, on_word):
        """Each step is (names whose records are sent, how it ends); after the last all pass."""
        self.asked.append(group.backends)
        sent, end = self.steps.pop(0) if self.steps else (group.backends, 1.0)
        self.clock *= 2  # every sitting finds another clock: ratios across sittings would be off by it
        for name in sent:
            status = Status.PASSED
            name, status = name if isinstance(name, tuple) else (name, status)
            speed = {"honest": 4.0, "a": 2.0, "b": 1.0}[name]
            record = passed(group, name, speed * self.clock)
            if status is not Status.PASSED:
                record = dataclasses.replace(record, status=status, time=None, reason="it was made to")
            on_record(record)
        return end


@pytest.fixture
def scripted(monkeypatch):
    def carry_out(*steps, starts=(), run=None):
        script = Script(list(steps), list(starts))
        monkeypatch.setattr(sweep, "Worker", script)
        events = []
        done = execute(run or small_run(NAMES), on_event=events.append)
        assert max(event.done for event in events) == len(done.records)
        assert [event.done for event in events if event.kind == "group"] == [
            len(NAMES) * (number + 1) for number in range(len(done.plan))]
        assert loads(dumps(done)) == done, "what is written is what is read, ratios included"
        return script, by_name(done)

    return carry_out


def ratios(found) -> dict[str, float | None]:
    return {name: found[name].speedup and round(found[name].speedup.ratio, 6) for name in ("a", "b")}


def test_all_in_one_sitting(scripted):
    script, found = scripted()
    assert script.asked == [NAMES]
    assert ratios(found) == {"a": 2.0, "b": 4.0}


def test_who_did_it_alone_has_the_record_at_once_and_who_passed_is_measured_again(scripted):
    script, found = scripted((["honest"], lost(1, "check: after timing")))
    assert script.asked == [NAMES, ("honest", "b")]
    assert script.workers == 2
    assert (found["a"].status, found["a"].reason) == (Status.CRASHED, "lost during check: after timing in x.py")
    assert found["a"].repro.startswith("attnbench compare ")
    assert "--backends honest,a --device cpu" in found["a"].repro
    assert found["a"].environment == 0
    assert ratios(found) == {"a": None, "b": 4.0}, "within one sitting"


def test_what_did_not_pass_is_not_measured_again(scripted):
    script, found = scripted(([("honest", Status.INCORRECT)], lost(2, "set-up")))
    assert script.asked == [NAMES, ("a",)]
    assert [found[name].status.value for name in NAMES] == ["incorrect", "passed", "crashed"]


def test_a_suspect_that_fails_alone_was_it(scripted):
    script, found = scripted(([], lost(1, "sample", Status.TIMEOUT)), ([], lost(0, "sample", Status.TIMEOUT)))
    assert script.asked == [NAMES, ("a",), ("honest", "b")]
    assert found["a"].status is Status.TIMEOUT
    assert ratios(found)["b"] == 4.0
    script, found = scripted(([], lost(1, "sample")), ([("a", Status.INCORRECT)], 1.0))
    assert found["a"].status is Status.INCORRECT


def test_a_suspect_that_passes_alone_is_measured_beside_the_baseline_as_all_others(scripted):
    script, found = scripted(([], lost(2, "sample")), (["b"], 1.0))
    assert script.asked == [NAMES, ("b",), ("honest",), ("honest", "a"), ("honest", "b")]
    assert script.workers == 5, "each in a process of its own"
    assert ratios(found) == {"a": 2.0, "b": 4.0}, "each with the baseline of its own sitting"
    assert found["honest"].time.num_samples == 24
    assert found["honest"].time.rounds == tuple(range(24))
    assert found["a"].time.rounds == tuple(range(8, 16))
    assert found["honest"].notes == (APART, SEVERAL)
    assert {APART in record.notes for record in found.values()} == {True}


def test_a_baseline_that_does_the_harm_is_left_out(scripted):
    script, found = scripted(
        ([], lost(1, "sample")), (["a"], 1.0), (["honest"], 1.0), ([], lost(1, "sample")), (["a"], 1.0),
        ([], lost(1, "sample")), ([], lost(0, "sample")))
    assert script.asked[2:] == [("honest",), ("honest", "a"), ("a",), ("honest", "b"), ("b",)]
    assert [found[name].status.value for name in NAMES] == ["passed", "passed", "crashed"]
    assert ratios(found) == {"a": None, "b": None}, "no round in common with the baseline"


def test_a_baseline_with_no_time_is_beside_nobody(scripted):
    script, found = scripted(
        ([], lost(1, "sample")), (["a"], 1.0), ([("honest", Status.FAILED)], 1.0))
    assert script.asked[2:] == [("honest",), ("a",), ("b",)]
    assert found["honest"].status is Status.FAILED


def test_a_death_in_closing_holds_against_a_time_and_not_against_a_reason(scripted):
    script, found = scripted((NAMES, lost(1, "closing")))
    assert script.asked == [NAMES]
    assert [found[name].status.value for name in NAMES] == ["passed", "crashed", "passed"]
    assert ratios(found) == {"a": None, "b": 4.0}
    script, found = scripted((["honest", ("a", Status.INCORRECT)], lost(1, "closing")))
    assert script.asked == [NAMES, ("honest", "b")]
    assert found["a"].status is Status.INCORRECT


def test_nobody_to_blame_is_tried_again_and_given_up_in_the_end(scripted):
    script, found = scripted((["honest"], lost(HARNESS, "idle")))
    assert script.asked == [NAMES, NAMES]
    assert ratios(found) == {"a": 2.0, "b": 4.0}
    script, found = scripted(*[([("a", Status.SKIPPED)], lost(HARNESS, "oracle"))] * MOST_LOSSES)
    assert [found[name].status.value for name in NAMES] == ["crashed", "skipped", "crashed"]
    assert len(script.asked) == MOST_LOSSES


def test_a_harness_that_hangs_is_not_waited_for_again(scripted):
    script, found = scripted(([], lost(HARNESS, "oracle", Status.TIMEOUT)))
    assert script.asked == [NAMES]
    assert {(record.status, record.reason) for record in found.values()} == {
        (Status.TIMEOUT, "lost during oracle in x.py")}


def test_a_worker_that_never_starts(scripted):
    with pytest.raises(NothingToRun, match=r"^worker: device=cpu cannot be measured; lost during start in /some"):
        scripted(starts=[lost(HARNESS, "start")])
    run = small_run(NAMES, NAMES)
    script, found = scripted((NAMES, 1.0), run=dataclasses.replace(run, environments=(Script.environment,)),
                             starts=[lost(HARNESS, "start")])
    assert script.workers == 2
    assert {record.status for record in found.values()} == {Status.PASSED}


def test_a_suspect_whose_trial_nobody_spoilt_is_not_condemned(scripted):
    script, found = scripted(([], lost(1, "sample")), ([], lost(HARNESS, "inputs")))
    assert script.asked[:3] == [NAMES, ("a",), ("honest",)]
    assert {record.status for record in found.values()} == {Status.PASSED}
