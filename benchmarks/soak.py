"""Runs on two executors of a CPU under random kills and stops: nothing may be lost, nothing may grow.

    python benchmarks/soak.py 7200      two hours; the seed is printed, `soak.py SECONDS SEED` repeats the dice

Workers are killed as the system kills them (SIGKILL, SIGTERM); now and then the run itself is stopped as by Ctrl-C and
resumed. After each round every row of the plan is there once, and says how it ended.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from attnbench.errors import NothingToRun
from attnbench.machine.device import CPU
from attnbench.record import PlannedGroup, Run, Settings, Status
from attnbench.store.runfile import new_id, now, read
from attnbench.sweep.executor import DeviceExecutor
from attnbench.sweep.run import Event, execute, without_interrupted
from attnbench.workloads.base import load_workload

BACKENDS = ("sdpa-math", "eager")
GROUPS = 3
KILL = 0.02
"""Of the steps of a worker that are heard of, those after which a worker is killed: as often on a slow machine."""
STOP = 0.1
"""Of the groups, those after which the run is stopped."""
MOST_GROWTH_MB = 64.0


def workers() -> list[int]:
    """Worker processes below this one: children of its supervisors."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    below = [pid for pid, parent in parents.items() if parents.get(parent) == os.getpid()]
    return [pid for pid in below if b"attnbench.worker" in command(pid)]


def command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def planned(number: int) -> Run:
    workload = load_workload("attention")
    cases = [
        workload.case({"batch": 1 + index, "seqlen": 33 + number % 7, "nheads": 1, "headdim": 8, "dtype": "fp32"})
        for index in range(GROUPS)
    ]
    return Run(
        id=new_id(),
        suite="soak",
        command="python benchmarks/soak.py",
        started=now(),
        plan=tuple(
            PlannedGroup(group=one.id, workload="attention", case=one.to_dict(), case_id=one.id, backends=BACKENDS)
            for one in cases
        ),
        settings=Settings(device="cpu", baseline=BACKENDS[0], warmup=1, iterations=20),
    )


def executors() -> list[DeviceExecutor]:
    both = [DeviceExecutor(CPU), DeviceExecutor(CPU)]
    for number, executor in enumerate(both):
        executor.name = f"cpu {number}"
    return both


def one_round(number: int, path: Path, dice: random.Random) -> tuple[Run, int, int]:
    """A run to its end, however often it is stopped; how often that was, and how many workers were killed."""
    run, stops, kills, heard = planned(number), 0, 0, set[str]()

    def hear(event: Event) -> None:
        nonlocal kills
        heard.add(event.kind)
        if event.kind == "group" and dice.random() < STOP:
            raise KeyboardInterrupt
        if event.kind in ("activity", "record") and dice.random() < KILL and (there := workers()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(dice.choice(there), dice.choice([signal.SIGKILL, signal.SIGTERM]))
                kills += 1

    while True:
        try:
            done = execute(run, path=path, executors=executors(), on_event=hear)
            assert heard >= {"activity", "record", "group"}, "the dice are thrown at these"
            return done, stops, kills
        except (KeyboardInterrupt, NothingToRun):  # by the dice, or because both workers were killed while they started
            stops += 1
            run = without_interrupted(read(path)) if path.exists() else run


def check(run: Run) -> None:
    rows = [(record.group, record.backend) for record in run.records]
    assert rows == [(group.group, name) for group in run.plan for name in group.backends], rows
    assert all(record.reason for record in run.records if record.status is not Status.PASSED)


def size() -> tuple[float, int]:
    """Resident MiB and open descriptors of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20, len(list(Path("/proc/self/fd").iterdir()))


def soak(seconds: float, seed: int, folder: Path) -> str:
    """Rounds until the time is up; what they came to."""
    dice = random.Random(seed)
    began, number, stops, kills, lost = time.monotonic(), 0, 0, 0, 0
    first: tuple[float, int] | None = None
    while first is None or time.monotonic() - began < seconds:
        path = folder / f"{number}.json"
        run, stopped, killed = one_round(number, path, dice)
        check(run)
        path.unlink()
        number, stops, kills = number + 1, stops + stopped, kills + killed
        lost += sum(record.status is not Status.PASSED for record in run.records)
        first = first or size()  # after one round everything is imported
    last = size()
    assert last[1] <= first[1], f"descriptors grew from {first[1]} to {last[1]}"
    assert last[0] - first[0] < MOST_GROWTH_MB, f"memory grew by {last[0] - first[0]:.0f} MiB"
    assert not workers(), "workers are left"
    return (
        f"{number} rounds, {number * GROUPS * len(BACKENDS)} rows, {kills} kills, {stops} stops, {lost} rows that "
        f"were killed twice; {last[0] - first[0]:+.1f} MiB, {last[1] - first[1]:+d} descriptors; seed {seed}"
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        print(soak(float(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else random.randrange(2**32), Path(place)))
