"""kill -9 of the worker or the parent, and Ctrl-C: at most the group in flight is lost, and resuming finishes it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from small_runs import FAKES, MISBEHAVING, by_name, small_run

from attnbench.machine import child
from attnbench.record import Run, Status
from attnbench.store.runfile import read, write
from attnbench.sweep import device_worker
from attnbench.sweep.run import execute
from waiting import gone, until

GROUPS = [["noting", "honest"]] * 3


def pids(log: Path) -> list[int]:
    """Of the process of each session of `noting` and its like, in order."""
    return [int(line.split()[1]) for line in log.read_text().splitlines() if line.startswith("pid ")]


@pytest.fixture
def parent(tmp_path):
    """Start a parent on a plan, and wait until it has said something so many times, where it holds still."""
    started = []

    def start(plan: Run, said: str, count: int) -> tuple[subprocess.Popen[str], Path]:
        path = tmp_path / "run.json"
        write(plan, path.with_suffix(".plan"))
        process = subprocess.Popen(
            [sys.executable, str(FAKES / "parent.py"), str(path), said, str(count)],
            env=child.environment(),
            text=True,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        started.append(process)
        for _ in range(count):
            assert any(line.strip() == said for line in process.stdout), "it ended before"
        return process, path

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def finished(plan: Run, path: Path, log: Path) -> None:
    """Resume what a file holds; everything is there, and nothing that was whole was measured again."""
    before = read(path) if path.exists() else plan
    whole = {record.group for record in before.records}
    assert len(before.records) == 2 * len(whole), "a group is written whole or not at all"
    sessions = len(pids(log))
    done = execute(before, path=path, backend_files=[MISBEHAVING])
    assert [(record.group, record.backend) for record in done.records] == [
        (group.group, name) for group in plan.plan for name in group.backends
    ]
    assert {record.status for record in done.records} == {Status.PASSED}
    assert len(pids(log)) - sessions == len(plan.plan) - len(whole)
    assert done.records[: len(before.records)] == before.records
    assert read(path) == done
    assert len(done.environments) == 1
    assert [one.name for one in path.parent.iterdir() if one.suffix == ".json"] == ["run.json"]


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize(
    ("said", "count"), [("activity starting a worker", 1), ("record", 1), ("group", 1), ("record", 5)]
)
def test_a_killed_parent_takes_its_worker_along_and_loses_the_group_in_flight(parent, log, said, count):
    plan = small_run(*GROUPS)
    process, path = parent(plan, said, count)
    # A process that was just started has no environment to read yet.
    assert until(lambda: len(workers(process.pid)) == 1)
    process.kill()
    process.wait()
    assert all(gone(pid) for pid in pids(log))
    assert until(lambda: not workers(process.pid))
    assert path.exists() == (said == "group" or count > 2)
    finished(plan, path, log)


def workers(parent: int) -> list[str]:
    """Processes that name this one as their parent."""
    found, wanted = [], f"ATTNBENCH_PARENT={parent}".encode()
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(folder.name)
        except OSError:
            continue
    return found


@pytest.mark.usefixtures("forked_workers")
def test_ctrl_c_keeps_what_was_measured(parent, log):
    plan = small_run(*GROUPS)
    process, path = parent(plan, "group", 2)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait() == 130
    assert all(gone(pid) for pid in pids(log))
    assert len({record.group for record in read(path).records}) == 2
    finished(plan, path, log)


@pytest.mark.usefixtures("forked_workers")
def test_a_killed_worker_is_replaced_and_nobody_blamed(log):
    said, killed = [], []

    def kill() -> None:
        killed.append(pids(log)[-1])
        os.kill(killed[-1], signal.SIGKILL)

    def kill_in_sampling() -> None:
        """While somebody is at work who cannot help it."""
        if until(lambda: "asleep" in log.read_text()):
            kill()

    def on_event(event) -> None:
        said.append(event.kind)
        if event.kind == "group" and said.count("group") == 2:
            kill()  # between two groups, while nobody is at work

    killer = threading.Thread(target=kill_in_sampling)
    killer.start()
    run = execute(small_run(*[["holds-still-once", "honest"]] * 3), backend_files=[MISBEHAVING], on_event=on_event)
    killer.join()
    assert len(set(killed)) == 2
    assert {record.status for record in run.records} == {Status.PASSED}
    assert len(run.records) == 2 * len(GROUPS)
    assert all(record.speedup for record in run.records if record.backend == "holds-still-once")
    assert all(gone(pid) for pid in pids(log))


def test_a_complete_run_is_left_as_it_is(log, tmp_path, monkeypatch):
    path = tmp_path / "run.json"
    done = execute(small_run(["honest"]), path=path, backend_files=[MISBEHAVING])
    text = path.read_bytes()
    monkeypatch.setattr(device_worker, "Worker", lambda device: pytest.fail("nothing is left to measure"))
    events = []
    again = execute(read(path), path=path, on_event=lambda event: events.append((event.kind, event.done, event.total)))
    assert again == done
    assert path.read_bytes() == text
    assert events == [("start", 1, 1), ("done", 1, 1)]


@pytest.mark.usefixtures("forked_workers")
def test_a_group_cut_in_two_is_one_comparison_measured_again(log, tmp_path):
    whole = execute(small_run(["honest", "noting"], ["honest", "noting"]), backend_files=[MISBEHAVING])
    path = tmp_path / "run.json"
    cut = Run(**{**{name: getattr(whole, name) for name in whole.__slots__}, "records": whole.records[1:]})
    done = execute(cut, path=path, backend_files=[MISBEHAVING])
    assert {(record.group, record.backend) for record in done.records} == {
        (record.group, record.backend) for record in whole.records
    }
    assert by_name(done, 1) == by_name(whole, 1)
    assert by_name(done)["noting"].time.samples_ms != by_name(whole)["noting"].time.samples_ms
    assert by_name(done)["noting"].speedup.baseline == "honest"


def test_replicates_are_of_fresh_processes(log):
    run = execute(small_run(["noting", "honest"], ["noting", "honest"], replicates=2), backend_files=[MISBEHAVING])
    first, again, other, other_again = pids(log)
    assert first == again
    assert other == other_again
    assert first != other
    assert [(record.replicate, record.backend) for record in run.records] == [
        (replicate, name) for replicate in (0, 1) for _ in range(2) for name in ("noting", "honest")
    ]
    assert all(record.speedup for record in run.records if record.backend == "noting")
    assert len({record.group for record in run.records}) == 4
    assert len({record.case_id for record in run.records}) == 2
