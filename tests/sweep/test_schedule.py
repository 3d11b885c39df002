"""Groups on several executors: each is measured once, whatever dies, and a case stays on its executor."""

from __future__ import annotations

import dataclasses
import random
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import small_run

from attnbench.errors import NothingToRun
from attnbench.machine.device import CPU
from attnbench.record import Environment, Record, Status
from attnbench.store.runfile import read
from attnbench.sweep import device_worker
from attnbench.sweep.device_worker import Stopped
from attnbench.sweep.executor import DeviceExecutor, ExecutorLost, Measured, Progress
from attnbench.sweep.run import execute
from attnbench.sweep.schedule import close_all, in_order
from attnbench.worker.activity import HARNESS, Activity
from attnbench.worker.process import Loss
from waiting import PATIENCE_S

LINUX = Environment(os="Linux", python="3.11")


class Scripted:
    """An executor that measures by words of a list: ok, lost while measuring, gone before."""

    def __init__(self, name, *words, meanwhile=lambda group: None):
        self.name, self.words, self.meanwhile = name, list(words), meanwhile
        self.groups, self.opened, self.closed = [], 0, 0
        self.stopped = threading.Event()

    def order(self):
        return self.name

    def open(self, on_progress):
        self.opened += 1

    def close(self):
        self.closed += 1

    def stop(self):
        self.stopped.set()

    def measure(self, group, settings, on_progress):
        on_progress(Progress("sample", group, group.backends[0]))
        self.meanwhile(group)
        if self.stopped.is_set():
            raise Stopped
        word = self.words.pop(0) if self.words else "ok"
        if word != "ok":
            raise ExecutorLost(f"{self.name} went away", measuring=word == "lost")
        self.groups.append(group.group)
        environment = dataclasses.replace(LINUX, gpu_uuid=f"GPU-{self.name}")
        records = tuple(passed(group, name) for name in group.backends)
        return Measured(records, (LINUX, environment), 0.5)


def passed(group, name):
    return Record(
        workload="attention",
        case=group.case,
        case_id=group.case_id,
        group=group.group,
        backend=name,
        replicate=group.replicate,
        status=Status.PASSED,
        environment=1,
    )


def complete(run):
    """Every row of the plan is there once, in the plan's order, and says how it ended."""
    assert [(one.group, one.backend) for one in run.records] == [
        (group.group, name) for group in run.plan for name in group.backends
    ]
    assert all(one.reason for one in run.records if one.status is not Status.PASSED)


def test_each_group_goes_to_one_executor_and_its_records_name_its_gpu():
    both = threading.Barrier(2, timeout=PATIENCE_S)
    begun = {"a": False, "b": False}

    def first_together(name):
        def wait(group):
            if not begun[name]:
                begun[name] = True
                both.wait()

        return wait

    a, b = (Scripted(name, meanwhile=first_together(name)) for name in ("a", "b"))
    events = []
    run = execute(small_run(*[["honest", "other"]] * 6), executors=[a, b], on_event=events.append)
    complete(run)
    assert sorted(a.groups + b.groups) == sorted(group.group for group in run.plan)
    assert a.groups, "each began one before either had two"
    assert b.groups
    for record in run.records:
        where = "a" if record.group in a.groups else "b"
        assert run.environments[record.environment].gpu_uuid == f"GPU-{where}"
    assert (a.opened, a.closed, b.opened, b.closed) == (1, 1, 1, 1)
    assert events[-1].done == events[-1].total == 12
    assert events[-1].sampling_s == 3.0
    assert {event.text for event in events if event.kind == "activity"} == {"a sample", "b sample"}


def test_the_longest_group_is_begun_first_and_replicates_follow_each_other():
    groups = small_run(["x"], ["x"], ["x"], replicates=2).plan
    seconds = {group.group: float(len(groups) - number if number != 1 else 99) for number, group in enumerate(groups)}
    assert [groups.index(group) for group in in_order(groups, seconds)] == [1, 0, 2, 3, 4, 5]


def test_one_executor_keeps_the_order_of_the_plan():
    alone = Scripted("a")
    run = execute(small_run(*[["honest"]] * 5), executors=[alone])
    assert alone.groups == [group.group for group in run.plan]


def test_the_replicates_of_a_case_stay_on_the_gpu_that_began_it():
    a, b = Scripted("a"), Scripted("b")
    run = execute(small_run(["x"], ["x"], ["x"], replicates=3), executors=[a, b])
    complete(run)
    for case in {group.case_id for group in run.plan}:
        assert len({record.environment for record in run.records if record.case_id == case}) == 1


def test_a_lost_executor_costs_only_its_group_which_another_measures():
    gone = threading.Event()
    a = Scripted("a", "ok", "lost")
    b = Scripted("b", meanwhile=lambda group: gone.wait(60))
    events = []

    def on_progress(event):
        events.append(event)
        if event.kind == "lost":
            gone.set()

    run = execute(small_run(*[["honest"]] * 5), executors=[a, b], on_event=on_progress)
    complete(run)
    assert {record.status for record in run.records} == {Status.PASSED}
    assert [event.text for event in events if event.kind == "lost"] == ["a is lost: a went away"]
    assert len(a.groups) == 1
    assert len(b.groups) == 4


def test_what_two_executors_were_lost_with_is_crashed_with_both_reasons():
    a, b = Scripted("a", "lost"), Scripted("b", "lost")
    run = execute(small_run(["honest", "x"]), executors=[a, b])
    complete(run)
    assert {one.status for one in run.records} == {Status.CRASHED}
    [reason] = {one.reason for one in run.records}
    assert reason.startswith("2 executors were lost while it was measured: ")
    assert "a went away" in reason
    assert "b went away" in reason


def test_executors_are_opened_in_one_order_and_one_that_is_not_there_is_left_out():
    opened = []

    class Opening(Scripted):
        def open(self, on_progress):
            opened.append(self.name)
            if "gone" in self.words:
                raise ExecutorLost("no such card", measuring=False)

    events = []
    executors = [Opening("c"), Opening("a", "gone"), Opening("b")]
    complete(execute(small_run(["x"], ["x"]), executors=executors, on_event=events.append))
    assert opened == ["a", "b", "c"], "whatever the order they are named in"
    assert [event.text for event in events if event.kind == "lost"] == ["a is lost: no such card"]
    assert executors[1].groups == []
    with pytest.raises(ExecutorLost, match="no such card"):
        execute(small_run(["x"]), executors=[Opening("a", "gone"), Opening("b", "gone")])


def test_what_an_executor_waits_for_is_an_event_of_its_own():
    class Waiting(Scripted):
        def open(self, on_progress):
            on_progress(Progress(f"waiting for {self.name}, which is held by another run"))

    events = []
    complete(execute(small_run(["x"]), executors=[Waiting("b"), Waiting("a")], on_event=events.append))
    waited = [event.text for event in events if event.kind == "waiting"]
    assert waited == [f"waiting for {name}, which is held by another run" for name in "ab"]
    assert events[0].kind == "waiting", "before anything is measured"


def test_executors_that_never_began_blame_nobody():
    a, b = Scripted("a", "gone"), Scripted("b", "gone")
    with pytest.raises(NothingToRun, match=r"^attnbench run: all 2 executors are lost; the last: [ab] went away$"):
        execute(small_run(["honest"]), executors=[a, b])
    assert (a.closed, b.closed) == (1, 1)


def test_when_no_executor_is_left_what_was_measured_is_kept_and_resuming_is_named(tmp_path):
    path = tmp_path / "run.json"
    plan = small_run(["x"], ["x"], ["x"])
    with pytest.raises(NothingToRun, match=r"a went away; 1 of 3 groups are kept; to finish: --resume \S*run.json$"):
        execute(plan, executors=[Scripted("a", "ok", "lost")], path=path)
    again = Scripted("b")
    complete(execute(read(path), executors=[again], path=path))
    assert again.groups == [group.group for group in plan.plan[1:]]


def test_a_mistake_of_ours_in_one_thread_ends_the_run():
    def wrong(group):
        raise ZeroDivisionError("ours")

    a, b = Scripted("a", meanwhile=wrong), Scripted("b", meanwhile=lambda group: b.stopped.wait(60))
    with pytest.raises(ZeroDivisionError, match="ours"):
        execute(small_run(*[["x"]] * 4), executors=[a, b])
    assert (a.closed, b.closed) == (1, 1)
    assert b.groups == []


def test_ctrl_c_stops_every_executor_and_keeps_what_was_measured(tmp_path):
    path = tmp_path / "run.json"

    def interrupt(event):
        if event.kind == "group":
            raise KeyboardInterrupt

    a, b = Scripted("a"), Scripted("b", meanwhile=lambda group: b.stopped.wait(60))
    plan = small_run(*[["x"]] * 4)
    with pytest.raises(KeyboardInterrupt):
        execute(plan, executors=[a, b], path=path, on_event=interrupt)
    kept = read(path)
    assert len(kept.records) == 1
    assert (a.closed, b.closed) == (1, 1)
    complete(execute(kept, executors=[Scripted("c"), Scripted("d"), Scripted("e")], path=path))


@given(
    st.integers(1, 12), st.lists(st.lists(st.sampled_from(["ok", "ok", "lost", "gone"]), max_size=6), min_size=1, max_size=4),
    st.integers(1, 2),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_whatever_executors_die_each_group_is_measured_or_failed_with_a_reason(count, scripts, replicates):
    plan = small_run(*[["honest", "x"]] * count, replicates=replicates)
    executors = [Scripted(f"s{number}", *words) for number, words in enumerate(scripts)]
    try:
        run = execute(plan, executors=executors)
    except NothingToRun:
        assert all("lost" in words or "gone" in words for words in scripts), "somebody could have gone on"
        return
    complete(run)
    measured = sorted(group for executor in executors for group in executor.groups)
    assert measured == sorted({one.group for one in run.records if one.status is Status.PASSED}), "each once"


# ── workers that die in executors that do not ───────────────────────────────────────────────────────


def test_executors_are_closed_at_the_same_time_also_if_one_fails():
    """Two that wait for each other: one after the other they would never end."""
    both = threading.Barrier(2, timeout=PATIENCE_S)

    class Slow(Scripted):
        def close(self):
            both.wait()
            super().close()
            if self.words:
                raise RuntimeError(self.words[0])

    executors = [Slow("one", "the worker of one does not end"), Slow("two")]
    with pytest.raises(RuntimeError, match="the worker of one"):
        close_all(executors)
    assert [one.closed for one in executors] == [1, 1]


class DyingWorker:
    """A worker process that is lost now and then, with somebody to blame or nobody."""

    environment = LINUX
    dice = random.Random(0)
    lock = threading.Lock()

    def __init__(self, device):
        self.device = device

    def roll(self):
        with self.lock:
            return self.dice.random()

    def start(self):
        lost = Loss(Status.CRASHED, Activity(0, HARNESS, "start"), "no start")
        return lost if self.roll() < 0.05 else None

    def close(self):
        pass

    def terminate(self):
        pass

    def measure(self, group, settings, files, *, on_record, on_activity):
        for index, name in enumerate(group.backends):
            what = self.roll()
            if what < 0.15:
                return Loss(
                    Status.CRASHED, Activity(9, index, "sample"), "killed by SIGKILL during sample", outside=True
                )
            if what < 0.3:
                return Loss(Status.CRASHED, Activity(9, index, "sample"), "killed by SIGSEGV during sample")
            if what < 0.35:
                return Loss(Status.TIMEOUT, Activity(9, HARNESS, "oracle"), "no progress")
            on_record(dataclasses.replace(passed(group, name), environment=None))
        return 0.1


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_whatever_workers_die_each_group_is_measured_or_failed_with_a_reason(seed, count, groups):
    DyingWorker.dice = random.Random(seed)
    plan = small_run(*[["honest", "a", "b"]] * groups)
    executors = []
    for number in range(count):
        executor = DeviceExecutor(CPU)
        executor.name = f"cpu-{number}"
        executors.append(executor)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_worker, "Worker", DyingWorker)
        try:
            run = execute(plan, executors=executors)
        except NothingToRun:
            return  # none of them ever had a worker
        complete(run)
