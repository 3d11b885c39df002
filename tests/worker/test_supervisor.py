"""The log of a worker is bounded and keeps the last lines; no process that a backend starts outlives the run."""

from __future__ import annotations

import errno
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from small_runs import FAKES, LEAVING, MISBEHAVING, by_name, small_run

from attnbench.errors import NothingToRun
from attnbench.machine import child
from attnbench.machine.device import CPU
from attnbench.record import Status
from attnbench.store.files import remove_drafts
from attnbench.store.runfile import write
from attnbench.sweep.run import execute
from attnbench.worker.activity import shared_memory
from attnbench.worker.process import Worker
from attnbench.worker.supervisor import KEPT, Ring
from waiting import gone, until

FILES = [MISBEHAVING, LEAVING]


@pytest.fixture
def log(tmp_path, monkeypatch) -> Path:
    path = tmp_path / "pids"
    path.touch()
    monkeypatch.setenv("ATTNBENCH_TEST_LOG", str(path))
    return path


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def pids(log: Path, count: int) -> list[int]:
    until(lambda: len(log.read_text().split()) >= count)
    return [int(word) for word in log.read_text().split()]


# ── the ring ───────────────────────────────────────────────────────────────────────────────────────


def test_a_ring_holds_the_last_of_what_was_added():
    draw, ring, everything = random.Random(1), Ring(shared_memory(Ring.SIZE)), b""
    ring.begin()
    assert ring.read() == (0, None, b"")
    for size in [1, 0, KEPT - 1, 1, KEPT, KEPT + 1, 3 * KEPT + 5, *(draw.randrange(2 * KEPT) for _ in range(40))]:
        data = draw.randbytes(size)
        ring.add(data)
        everything += data
        assert ring.read() == (len(everything), None, everything[-KEPT:])
    ring.end(-11)
    assert ring.read() == (len(everything), -11, everything[-KEPT:])


# ── the log ────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_printed_is_counted_and_the_last_words_of_a_crash_are_kept():
    run = small_run(["honest", "prints-a-lot-and-dies", "prints-a-lot", "prints-in-each-sample"])
    found = {}
    with Worker(CPU) as worker:
        assert worker.start() is None
        loss = worker.measure(run.plan[0], run.settings, FILES, on_record=lambda one: None)
    assert loss.reason.startswith("killed by SIGSEGV during first call; its last line was: the last words; it printed ")
    printed = int(loss.reason.split("it printed ")[1].split()[0])
    assert 64 * 2**20 <= printed < 65 * 2**20
    assert loss.reason.endswith("of which the last 65536 are kept")
    run = small_run(["honest", "prints-a-lot", "prints-in-each-sample"])
    with Worker(CPU) as worker:
        assert worker.start() is None
        worker.measure(run.plan[0], run.settings, FILES, on_record=lambda one: found.update({one.backend: one}))
    assert {one.status for one in found.values()} == {Status.PASSED}
    sampled = [note for note in found["honest"].notes if "printed" in note]
    assert len(sampled) == 1
    assert re.match(r"while the group was sampled: \d+\.\d MiB were printed", sampled[0])
    assert found["prints-a-lot"].notes[0] == "64.0 MiB were printed; the log keeps the last 64 KiB"


def test_a_log_takes_no_memory_of_the_parent(monkeypatch):
    def memory() -> int:
        return int(Path("/proc/self/smaps_rollup").read_text().split("Pss:")[1].split()[0])

    run = small_run(["prints-a-lot"])
    with Worker(CPU) as worker:
        assert worker.start() is None
        before = memory()
        assert isinstance(worker.measure(run.plan[0], run.settings, FILES, on_record=lambda one: None), float)
        assert memory() - before < 16 * 1024, "KiB, of 64 MiB that were printed"


# ── processes ──────────────────────────────────────────────────────────────────────────────────────


def test_daemons_end_with_the_run(log):
    run = execute(small_run(["honest", "leaves-a-daemon", "leaves-a-family"]), backend_files=FILES)
    assert {one.status for one in run.records} == {Status.PASSED}
    left = pids(log, 4)
    assert len(left) == 4
    assert all(map(gone, left))


def test_daemons_end_with_a_worker_that_dies(log):
    run = execute(small_run(["dies-and-leaves-a-daemon"]), backend_files=FILES)
    assert by_name(run)["dies-and-leaves-a-daemon"].status is Status.CRASHED
    assert all(map(gone, pids(log, 1)))


@pytest.mark.parametrize("victim", ["parent", "supervisor"])
def test_daemons_end_when_the_parent_is_killed(log, tmp_path, victim):
    plan = small_run(["leaves-a-daemon", "honest"], iterations=None, warmup=None, rel_ci=1e-9, max_seconds=60.0)
    path = tmp_path / "run.json"
    write(plan, path.with_suffix(".plan"))
    parent = subprocess.Popen(
        [sys.executable, str(FAKES / "parent.py"), str(path), "never said", "1"],
        stdout=subprocess.DEVNULL,
        env=child.environment(),
        start_new_session=True,
    )
    try:
        daemons = pids(log, 1)
        [supervisor] = children(parent.pid)
        assert until(lambda: len(children(supervisor)) == 2), "the worker, and the daemon whose starter is gone"
        workers = children(supervisor)
        os.kill(parent.pid if victim == "parent" else supervisor, signal.SIGKILL if victim == "parent" else 15)
        assert gone(supervisor)
        assert all(map(gone, [*daemons, *workers]))
    finally:
        parent.kill()
        parent.wait()


def test_no_process_that_a_backend_starts_answers_in_place_of_the_worker(log):
    forking = ["its-child-returns", "its-child-raises", "its-program-writes", "forks-a-pool"]
    run, found = small_run(["honest", *forking], ["honest"]), []
    with Worker(CPU) as worker:
        assert worker.start() is None
        [own] = children(worker.pid)
        for group in run.plan:
            done = worker.measure(
                group, run.settings, FILES, on_record=lambda one: found.append((one.backend, one.status))
            )
            assert isinstance(done, float), done
        assert children(worker.pid) == [own]
        assert children(own) == []
    assert found == [(name, Status.PASSED) for name in ["honest", *forking, "honest"]]
    assert log.read_text().splitlines() == [f"pool {[os.devnull] * 2}", f"closed-by {own}"]


def test_a_worker_whose_supervisor_was_stopped_is_closed_all_the_same(monkeypatch):
    monkeypatch.setattr("attnbench.worker.process.END_S", 0.3)
    run = small_run(["stops-its-supervisor"])
    worker = Worker(CPU)
    assert worker.start() is None
    assert isinstance(worker.measure(run.plan[0], run.settings, FILES, on_record=lambda one: None), float)
    worker.close()
    assert gone(worker.pid)


# ── drafts ─────────────────────────────────────────────────────────────────────────────────────────


def test_drafts_of_killed_processes_go_and_no_others(tmp_path):
    ended = subprocess.Popen([sys.executable, "-S", "-c", ""])
    ended.wait()
    path = tmp_path / ("r" * 210 + ".json")
    mine = f".{path.name[:200]}"
    names = [
        f"{mine}.{ended.pid}.tmp",
        f"{mine}.{10**30}.tmp",
        f"{mine}.{os.getppid()}.tmp",
        f"{mine}.x.tmp",
        f".other.json.{ended.pid}.tmp",
        path.name,
    ]
    for name in names:
        (tmp_path / name).touch()
    remove_drafts(path)
    assert {one.name for one in tmp_path.iterdir()} == set(names[2:])
    remove_drafts(tmp_path / "no folder" / "run.json")


def test_a_resumed_run_removes_them(tmp_path):
    ended = subprocess.Popen([sys.executable, "-S", "-c", ""])
    ended.wait()
    path = tmp_path / "run.json"
    (tmp_path / f".run.json.{ended.pid}.tmp").touch()
    execute(small_run(), path=path)
    assert [one.name for one in tmp_path.iterdir()] == ["run.json"]


def test_a_limit_of_file_sizes_that_leaves_no_room_for_the_log_is_said(monkeypatch):
    def truncate(handle, size):
        raise OSError(errno.EFBIG, "File too large")

    monkeypatch.setattr(os, "truncate", truncate)
    with pytest.raises(NothingToRun, match=r"shared memory=4096 cannot be allocated \(File too large\); .*ulimit -f"):
        shared_memory(4096)
