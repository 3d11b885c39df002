"""A worker without a process: its pipe holds given bytes, then ends."""

from __future__ import annotations

import os
import random
import selectors

from small_runs import small_run

from attnbench.record import Environment, Record, Status, Time, to_dict
from attnbench.worker.activity import HARNESS, ActivityPage, shared_memory
from attnbench.worker.process import Worker
from attnbench.worker.supervisor import Ring

NAMES = ("honest", "a", "b")
RUN = small_run(NAMES)
GROUP = RUN.plan[0]
READY = {"say": "ready", "environment": to_dict(Environment(os="Linux", python="3.11"))}
DONE = {"say": "done", "number": 1, "sampling_s": 0.5}


def record(name: str, status: Status = Status.PASSED, **more) -> dict:
    samples = (1.0, 2.0, 1.5)
    time = Time(
        timer="wall",
        l2="warm",
        regime="cpu",
        stopped_by="iterations",
        num_samples=3,
        median_ms=1.5,
        mean_ms=1.5,
        min_ms=1.0,
        max_ms=2.0,
        p95_ms=2.0,
        p99_ms=2.0,
        samples_ms=samples,
        rounds=(0, 1, 2),
        at_s=(0.0, 0.1, 0.2),
    )
    whole = Record(
        workload="attention",
        case=GROUP.case,
        case_id=GROUP.case_id,
        group=GROUP.group,
        backend=name,
        status=status,
        time=time if status is Status.PASSED else None,
        reason=None if status is Status.PASSED else "it was made to",
        **more,
    )
    return {"say": "record", "record": to_dict(whole)}


def _put(end: int, said: bytes) -> None:
    """What fits into a pipe that nobody reads yet; a worker may also end without a word."""
    kept = said[:60_000]
    assert os.write(end, kept) == len(kept)


class Ended:
    """The supervisor of a worker that has said all it had to say."""

    pid, returncode = 1, 0

    def __init__(self, code: int) -> None:
        self.code = code

    def poll(self) -> int | None:
        return self.code

    def wait(self, timeout: float | None = None) -> int:
        return self.code


class Asked:
    """The worker's pipe of requests: at the first it says all it has to say and ends; a second finds nobody."""

    def __init__(self, end: int, said: bytes) -> None:
        self.end: int | None = end
        self.said = said

    def write(self, text: str) -> None:
        if self.end is None:
            raise BrokenPipeError
        _put(self.end, self.said)
        os.close(self.end)
        self.end = None

    def flush(self) -> None:
        pass

    close = flush


def worker_that_said(ready: bytes, said: bytes, draw: random.Random) -> Worker:
    """A worker without a process."""
    worker = Worker.__new__(Worker)
    worker.page, ring = ActivityPage.create(), shared_memory(Ring.SIZE)
    worker.page.announce(draw.choice((HARNESS, 0, 1, 2, 3, 2**31 - 1)), draw.choice(("sample", "set-up", "\x1b\n", "")))
    worker._log = Ring(ring)
    worker._log.begin()
    os.close(ring)
    worker._from, end = os.pipe()
    _put(end, ready)
    worker._control = os.dup(worker._from)  # not of `end`: the pipe is to end
    worker._write = Asked(end, said)
    worker._selector = selectors.DefaultSelector()
    worker._selector.register(worker._from, selectors.EVENT_READ)
    worker._buffer, worker._closed, worker.environment, worker._number = bytearray(), False, None, 0
    worker._ending, worker._at_once = None, False
    worker._process = Ended(draw.choice((0, 1, -9, -11, -15, -40)))
    return worker
