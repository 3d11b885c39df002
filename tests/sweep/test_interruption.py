"""A signal during a group: its samples are kept if there are enough, and resuming measures it again."""

from __future__ import annotations

import dataclasses
import re
import signal

import pytest
from small_runs import FAKES, MISBEHAVING, by_name, small_run

from attnbench.machine.device import Device
from attnbench.record import INTERRUPTED, Record, Status
from attnbench.stats.summary import FEWEST_FOR_INTERVAL
from attnbench.store.runfile import read
from attnbench.sweep.device_worker import Attempt
from attnbench.sweep.executor import DeviceExecutor
from attnbench.sweep.group import ConfirmedFailures, GroupMeasurement
from attnbench.sweep.interruption import Interruption
from attnbench.sweep.run import execute, without_interrupted
from attnbench.worker.activity import Activity
from attnbench.worker.process import Loss, interruption

ENDLESS = {"warmup": 0, "iterations": 10**9}
NAMES = ["honest", "noting"]


@pytest.fixture(autouse=True)
def hears_sigint():
    """As a command does that a shell started in the foreground; a background job, such as `make test &`, is deaf to it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Ender:
    """Sends a signal, so many times, as soon as `when` holds of what its executors are doing."""

    def __init__(self, run, when, *, number=signal.SIGINT, times=1, executors=(), files=(MISBEHAVING,)):
        self.run, self.when, self.number, self.times = run, when, number, times
        self.executors = executors or [DeviceExecutor(Device("cpu"), files)]
        self.said = []

    def on_event(self, event) -> None:
        self.said.append(event)
        pages = [one.worker._process.page for one in self.executors if one.worker._process is not None]
        if event.kind == "activity" and self.times and self.when(event, pages):
            for _ in range(self.times):
                self.times -= 1
                signal.raise_signal(self.number)

    def ended(self, path, files=(MISBEHAVING,)) -> None:
        with pytest.raises(KeyboardInterrupt):
            execute(self.run, path=path, backend_files=files, on_event=self.on_event, executors=self.executors)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "put back"


def enough(event, pages) -> bool:
    return any(page.enough() for page in pages)


def early(event, pages) -> bool:
    """In whatever phase a busy machine lets us see first."""
    return event.backend in NAMES


@pytest.mark.usefixtures("forked_workers")
def test_enough_samples_are_kept_checked_and_said_to_be_cut_short(log, tmp_path):
    path, plan = tmp_path / "run.json", small_run(NAMES, NAMES, **ENDLESS)
    ender = Ender(plan, enough)
    ender.ended(path)
    kept = read(path)
    assert [(one.group, one.backend) for one in kept.records] == [(plan.plan[0].group, name) for name in NAMES]
    for record in kept.records:
        assert (record.status, record.time.stopped_by) == (Status.PASSED, INTERRUPTED)
        assert FEWEST_FOR_INTERVAL <= record.time.num_samples < 10**9
        assert record.time.ci_low_ms is not None
        assert record.errors
    assert by_name(kept)["noting"].speedup.baseline == "honest"
    assert [one.text for one in ender.said if one.kind == "ending"] == [
        "ending the round in hand; the same signal again ends at once",
        "",
    ]
    assert ender.said[-1].run.records == kept.records
    before = path.read_bytes()
    # Too early a second time: what was there stands.
    resumed = without_interrupted(kept)
    assert resumed.records == ()
    warming = dataclasses.replace(resumed.settings, warmup=10**9)  # there is no sample, however late the signal comes
    Ender(dataclasses.replace(resumed, settings=warming), early, times=2).ended(path)
    assert path.read_bytes() == before
    # To the end: measured again, as it was asked for.
    finite = dataclasses.replace(resumed.settings, iterations=8)
    done = execute(dataclasses.replace(resumed, settings=finite), path=path, backend_files=[MISBEHAVING])
    assert {(one.time.stopped_by, one.time.num_samples) for one in done.records} == {("iterations", 8)}
    assert read(path) == done
    assert len(done.records) == 4


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize(("stuck", "times"), [("hangs-in-first-call", 1), ("hangs-in-sampling", 1), ("noting", 2)])
def test_too_early_is_a_row_that_says_so_beside_finished_groups_and_no_file_without(log, tmp_path, stuck, times):
    def ended(number, frame):
        raise KeyboardInterrupt

    def asleep(event, pages) -> bool:
        return early(event, pages) if stuck == "noting" else event.backend == stuck and "asleep" in log.read_text()

    path, (alone, beside) = tmp_path / "run.json", small_run(["honest"], ["honest", stuck]).plan
    # Of an endless warm-up there is no sample, however late the two signals come.
    endless = ENDLESS | {"warmup": 10**9} if stuck == "noting" else ENDLESS
    run = dataclasses.replace(small_run(**endless), plan=(beside,))
    Ender(run, asleep, times=times).ended(path)
    assert not path.exists()
    finished = execute(small_run(["honest"]), backend_files=[MISBEHAVING])
    run = dataclasses.replace(run, plan=(alone, beside), records=finished.records, environments=finished.environments)
    before = signal.signal(signal.SIGTERM, ended)
    try:
        log.write_text("")
        Ender(run, asleep, times=times, number=signal.SIGTERM).ended(path)
    finally:
        signal.signal(signal.SIGTERM, before)
    kept = read(path)
    assert [one.status for one in kept.records] == [Status.PASSED, Status.SKIPPED, Status.SKIPPED]
    for record in kept.records[1:]:
        assert re.fullmatch(r"interrupted by SIGTERM during .+; --resume measures it again", record.reason)
    assert without_interrupted(kept).records == kept.records[:1]


@pytest.mark.usefixtures("forked_workers")
def test_a_second_signal_ends_at_once_and_a_third_raises(log, tmp_path):
    path, plan = tmp_path / "run.json", small_run(NAMES, **ENDLESS)
    Ender(plan, enough, times=2).ended(path)
    # What a quick worker hands over before it is ended is kept.
    rows = read(path).records if path.exists() else ()
    assert {one.time.stopped_by for one in rows if one.time} <= {INTERRUPTED}
    heard = []
    with Interruption(lambda name, at_once: heard.append((name, at_once)) or True):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert heard == [("SIGINT", False), ("SIGINT", True)]


def test_where_no_group_is_in_hand_the_first_signal_raises():
    with pytest.raises(KeyboardInterrupt), Interruption(lambda name, at_once: False):
        signal.raise_signal(signal.SIGINT)


def test_several_workers_hand_over_what_they_have(nvml, log, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(FAKES / "simulated_h200"))
    monkeypatch.setenv("ATTNBENCH_TIMERS", str(FAKES / "simulated_timers.py"))
    nvml.add("NVIDIA H200", 2)
    file = str(FAKES / "on_card.py")
    names = ["reference", "twice-as-fast", "long-on-host"]
    plan = small_run(names, names, names, device="cuda:0", baseline="reference", **ENDLESS)

    def both(event, pages) -> bool:
        return len(pages) == 2 and all(page.enough() for page in pages)

    executors = [DeviceExecutor(Device("cuda", index), (file,), wait=False) for index in (0, 1)]
    path = tmp_path / "run.json"
    Ender(plan, both, executors=executors).ended(path, [file])
    kept = read(path)
    assert len({one.group for one in kept.records}) == 2
    ends = {(one.status, one.reason, one.time and one.time.stopped_by) for one in kept.records}
    assert ends == {(Status.PASSED, None, INTERRUPTED)}
    assert len({one.environment for one in kept.records}) == 2


# ── the blame inside a group (`sweep.group`), by script ────────────────────────────────────────────


class Scripted:
    """Requests whose answers are written down."""

    def __init__(self, group, *answers) -> None:
        self.group, self.answers = group, list(answers)

    def renew(self) -> None:
        """Nothing to do."""

    def attempt(self, group, names, settings) -> Attempt:
        found, loss = self.answers.pop(0)
        return Attempt(tuple(names), {name: self.record(name, status) for name, status in found.items()}, loss, False)

    def record(self, name, status) -> Record:
        group = self.group
        reason = None if status is Status.PASSED else "it was made to"
        return Record(
            workload=group.workload,
            case=group.case,
            case_id=group.case_id,
            group=group.group,
            backend=name,
            status=status,
            reason=reason,
        )

    def failure(self, group, name, settings, loss: Loss) -> Record:
        return dataclasses.replace(self.record(name, loss.status), reason=loss.reason)


END = interruption("SIGTERM", Activity(1, 0, "sample"))
WORDS = "interrupted by SIGTERM during sample; --resume measures it again"


@pytest.mark.parametrize(
    ("answers", "reasons"),
    [
        ([({"a": Status.PASSED}, END)], {"a": None, "b": WORDS}),
        ([({"a": Status.PASSED, "b": Status.SKIPPED}, END)], {"a": None, "b": "it was made to"}),
        # A conviction that is not confirmed is none.
        ([({"a": Status.PASSED, "b": Status.INCORRECT}, END)], {"a": None, "b": WORDS}),
        ([({"a": Status.PASSED, "b": Status.INCORRECT}, None), ({}, END)], {"a": None, "b": WORDS}),
        # It passes alone, so somebody does harm: what was measured beside it does not stand.
        (
            [({"a": Status.PASSED, "b": Status.INCORRECT}, None), ({"b": Status.PASSED}, None), ({}, END)],
            {"a": WORDS, "b": WORDS},
        ),
    ],
)
def test_what_stands_of_a_group_that_is_ended(answers, reasons):
    run = small_run(["a", "b"], baseline="a")
    [group] = run.plan
    records = GroupMeasurement(Scripted(group, *answers), group, run.settings, ConfirmedFailures()).records()
    assert {one.backend: one.reason for one in records} == reasons
