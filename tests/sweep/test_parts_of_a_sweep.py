"""Each part alone: blaming a group needs no run and no process, a device's worker needs no schedule."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import pytest

from attnbench.errors import NothingToRun
from attnbench.machine.device import Device
from attnbench.record import Environment, Record, Settings, Status
from attnbench.sweep import device_worker
from attnbench.sweep.device_worker import Attempt, DeviceWorker
from attnbench.sweep.group import APART, ConfirmedFailures, GroupMeasurement
from attnbench.worker.activity import HARNESS, Activity
from attnbench.worker.process import Loss
from fakes.small_runs import small_run

NAMES = ("honest", "a", "b")
RUN = small_run(NAMES)
[GROUP] = RUN.plan


def record(name: str, status: Status = Status.PASSED, reason: str | None = None) -> Record:
    return Record(
        workload="attention",
        case=GROUP.case,
        case_id=GROUP.case_id,
        group=GROUP.group,
        backend=name,
        status=status,
        reason=reason,
    )


class Answers:
    """Requests answered from a list; what is asked, and whether in a fresh process, is kept."""

    def __init__(self, *answers):
        self.answers, self.asked, self.fresh = list(answers), [], True

    def renew(self):
        self.fresh = True

    def attempt(self, group, names, settings):
        self.asked.append((tuple(names), self.fresh))
        alone, self.fresh = self.fresh and len(names) == 1, False
        failing = self.answers.pop(0) if self.answers else {}
        found = {name: record(name, *failing.get(name, ())) for name in names}
        return Attempt(tuple(names), found, None, alone)

    def failure(self, group, name, settings, loss):
        return record(name, loss.status, loss.reason)


def measured(answers: Answers, confirmed: ConfirmedFailures | None = None) -> dict[str, Record]:
    settings = Settings(baseline="honest")
    records = GroupMeasurement(answers, GROUP, settings, confirmed or ConfirmedFailures()).records()
    return {one.backend: one for one in records}


def test_a_group_is_judged_without_a_run():
    answers = Answers({"a": (Status.FAILED, "late error")})
    found = measured(answers)
    assert answers.asked[:2] == [(NAMES, True), (("a",), True)]
    assert all(one.status is Status.PASSED for one in found.values())
    assert all(APART in one.notes for one in found.values())


def test_what_a_backend_was_seen_to_raise_alone_starts_no_process_in_a_later_group():
    confirmed = ConfirmedFailures()
    fails = {"a": (Status.FAILED, "needs 64 rows, not 15")}
    assert measured(Answers(fails, fails), confirmed)["a"].status is Status.FAILED
    later = Answers({"a": (Status.FAILED, "needs 64 rows, not 33")})
    assert measured(later, confirmed)["a"].status is Status.FAILED
    assert later.asked == [(NAMES, True)]


class Listener:
    def __init__(self):
        self.activities, self.records = [], []

    def on_activity(self, text, group=None, backend=None):
        self.activities.append((text, backend))

    def on_record(self, group, one):
        self.records.append((group.group, one.backend))


class Process:
    """A worker process that passes everything it is asked for; `made` counts them."""

    environment = Environment(os="Linux", python="3.11")
    starts: ClassVar[list] = []
    made = 0

    def __init__(self, device):
        type(self).made += 1
        self.device = device

    def start(self):
        return self.starts.pop(0) if self.starts else None

    def close(self):
        pass

    def measure(self, group, settings, files, *, on_record, on_activity):
        on_activity(Activity(1, 0, "sample"))
        for name in group.backends:
            on_record(dataclasses.replace(record(name), replicate=group.replicate))
        return 0.5


@pytest.fixture
def worker(monkeypatch):
    class Fresh(Process):
        starts: ClassVar[list] = []

    monkeypatch.setattr(device_worker, "Worker", Fresh)
    return DeviceWorker(Device("cuda", 1), (), Listener()), Fresh


def test_a_worker_is_started_when_asked_and_replaced_when_touched(worker):
    it, processes = worker
    it.renew()
    assert processes.made == 0
    first = it.attempt(GROUP, ["a"], RUN.settings)
    assert (first.alone, first.loss, list(first.found)) == (True, None, ["a"])
    again = it.attempt(GROUP, NAMES, RUN.settings)
    assert (again.alone, processes.made, it.sampling_s) == (False, 1, 1.0)
    it.renew()
    it.renew()
    assert it.attempt(GROUP, ["b"], RUN.settings).alone
    assert processes.made == 2
    assert it.listener.activities == [
        ("starting a worker", None),
        ("sample", "a"),
        ("sample", "honest"),
        ("starting a worker", None),
        ("sample", "b"),
    ]
    assert {one.environment for one in again.found.values()} == {0}
    assert it.listener.records[0] == (GROUP.group, "a")


def test_a_device_that_cannot_be_measured_is_named(worker):
    it, processes = worker
    loss = Loss(Status.CRASHED, Activity(0, HARNESS, "start"), "no such card")
    processes.starts.append(loss)
    with pytest.raises(NothingToRun, match=r"^worker: device=cuda:1 cannot be measured; no such card$"):
        it.attempt(GROUP, ["a"], RUN.settings)
    # A signal from outside is nobody's doing the first time.
    killed = dataclasses.replace(loss, outside=True)
    processes.starts += [killed, killed]
    with pytest.raises(NothingToRun, match=r"no such card$"):
        it.attempt(GROUP, ["a"], RUN.settings)
    processes.starts.append(killed)
    # Once one was ready, a later start that fails is a loss like any other.
    it.attempt(GROUP, ["a"], RUN.settings)
    it.close()
    processes.starts.append(loss)
    lost = it.attempt(GROUP, ["a"], RUN.settings)
    assert (lost.found, lost.blamed, lost.loss.reason) == ({}, None, "no such card")
