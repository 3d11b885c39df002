"""The generator's process as the server sees it: arrivals to take, answers to give."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import select
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from attnbench.errors import AttnbenchError
from attnbench.loadtest.issuing.loadgen import Settings
from attnbench.loadtest.issuing.wire import END, ISSUED, NUMBER, PIPE_BYTES, START, unpack
from attnbench.machine import child

READ = 1 << 18
FEWEST_CORES, RESERVED = 4, 2
"Of fewer cores none is kept for the generator; else two: one for its threads, one for LoadGen's log."
END_S = 5.0
"A generator that is told to end by closed pipes has so long."


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that was issued."""

    number: int
    "the generator's own"
    index: int
    "which sample"
    issued_ns: int
    "on the monotonic clock"


class Source(Protocol):
    """Where arrivals come from."""

    all_issued: bool
    "no request will follow"
    over: bool
    "the source is done; of LoadGen only once every request has its answer"

    def take(self, timeout_s: float) -> list[Arrival]:
        """What has arrived; where nothing has, waits so long for it."""

    def answered(self, numbers: Sequence[int]) -> None:
        """Say which requests are over, answered or refused."""


_reserved: set[int] = set()


def generator_cores() -> set[int]:
    """Cores that are the generator's own; none where there are too few."""
    return set(_reserved)


@contextlib.contextmanager
def own_cores() -> Iterator[None]:
    """Keep some cores for generators that are started meanwhile, and this thread, which serves, off them.

    The server wakes the generator with each answer, and the system likes to run who is woken where the waker is: there
    the generator would wait for the server, with the lock of its interpreter held, for milliseconds.
    """
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    if len(before) < FEWEST_CORES:
        yield
        return
    _reserved.update(sorted(before)[-RESERVED:])
    os.sched_setaffinity(0, before - _reserved)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        _reserved.clear()


class Generator:
    """A process that issues requests.  Use as a context manager."""

    def __init__(self, module: str, stdin: bytes, *, wants_answers: bool) -> None:
        """Started.

        Args:
            module: of `load.issuing`.
            stdin: what it reads first.
            wants_answers: it counts what is over.
        """
        self._in, out = os.pipe()
        answers, self._out = os.pipe()
        with contextlib.suppress(OSError, AttributeError):  # not here: the pipe is then of its usual size
            fcntl.fcntl(self._in, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        handles = (out, answers) if wants_answers else (out,)
        self._process = subprocess.Popen(
            child.command(module, *map(str, handles)),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=handles,
            start_new_session=True,
            env=child.environment(),
        )
        os.close(out)
        os.close(answers)
        if generator_cores():
            with contextlib.suppress(ProcessLookupError):  # it has ended already: take() finds out
                os.sched_setaffinity(self._process.pid, generator_cores())
        self._wants = wants_answers
        self._rest = b""
        self.origin_ns: int | None = None
        "when the schedule begins, on the monotonic clock"
        self.issued_ns: int | None = None
        "when it said that all are issued"
        self.all_issued = self.over = self.lost = False
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already: take() finds out
            self._process.stdin.write(stdin)
            self._process.stdin.close()

    def __enter__(self) -> Generator:
        """Nothing to do: it runs."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process, whatever it is doing."""
        os.close(self._in)
        os.close(self._out)
        try:
            self._process.wait(END_S if self.over else 0)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()

    def take(self, timeout_s: float) -> list[Arrival]:
        """As of `Source`."""
        if self.over or not select.select([self._in], [], [], timeout_s)[0]:
            return []
        data = os.read(self._in, READ)
        if not data:
            self.lost = self.all_issued = self.over = True
            return []
        records, self._rest = unpack(self._rest + data)
        found = []
        for number, index, at in records:
            if number >= 0:
                found.append(Arrival(number, index, at))
            elif number == START:
                self.origin_ns = at
            elif number == ISSUED:
                self.all_issued, self.issued_ns = True, at
            elif number == END:
                self.over = True
        return found

    def answered(self, numbers: Sequence[int]) -> None:
        """As of `Source`."""
        if self._wants and not self.lost:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._out, b"".join(map(NUMBER.pack, numbers)))

    def words(self) -> str:
        """The last line that it said before it was lost."""
        self._process.wait()
        lines = self._process.stderr.read().decode("utf-8", "replace").split("\n") if self._process.stderr else []
        return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "without a word")

    def check(self) -> None:
        """Complain where it ended before its time.

        Raises:
            AttnbenchError: with its last words.
        """
        if self.lost:
            raise AttnbenchError(f"load: the generator's process ended before it was done: {self.words()}")


def scheduled(due_ns: Sequence[int]) -> Generator:
    """Our own open loop over a schedule: nanoseconds from the start, ascending."""
    data = b"".join([NUMBER.pack(len(due_ns)), *map(NUMBER.pack, due_ns)])
    return Generator("attnbench.loadtest.issuing.schedule", data, wants_answers=False)


def by_loadgen(settings: Settings) -> Generator:
    """LoadGen's test."""
    return Generator(
        "attnbench.loadtest.issuing.loadgen", json.dumps(dataclasses.asdict(settings)).encode(), wants_answers=True
    )
