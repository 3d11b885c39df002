"""The generator's process as seen by the server: arrivals to receive, answers to report."""

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
"With fewer cores none is reserved for the generator; otherwise two: one for its threads, one for LoadGen's log."
END_S = 5.0
"Time limit for a generator to end after its pipes are closed."


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that was issued."""

    number: int
    "assigned by the generator"
    index: int
    "of the sample"
    issued_ns: int
    "on the monotonic clock"


class Source(Protocol):
    """A source of arrivals."""

    all_issued: bool
    "no request will follow"
    over: bool
    "the source is done; for LoadGen only once every request has been answered"

    def take(self, timeout_s: float) -> list[Arrival]:
        """Return the arrivals so far; if there are none, wait up to `timeout_s` for one."""

    def answered(self, numbers: Sequence[int]) -> None:
        """Report requests that are finished, answered or refused."""


_reserved: set[int] = set()


def generator_cores() -> set[int]:
    """Return the cores reserved for the generator; none if there are too few cores."""
    return set(_reserved)


@contextlib.contextmanager
def own_cores() -> Iterator[None]:
    """Reserve some cores for generators that are started meanwhile, and keep this serving thread off them.

    The server wakes the generator with each answer, and the kernel prefers to run a woken thread on the core of the
    waker.  There the generator, holding its interpreter lock, would wait for the server for milliseconds.
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
        """Start the process.

        Args:
            module: name in `loadtest.issuing`.
            stdin: sent to it first.
            wants_answers: whether it counts finished requests.
        """
        self._in, out = os.pipe()
        answers, self._out = os.pipe()
        with contextlib.suppress(OSError, AttributeError):  # not supported here: the pipe keeps its default size
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
            with contextlib.suppress(ProcessLookupError):  # it has already ended; take() reports that
                os.sched_setaffinity(self._process.pid, generator_cores())
        self._wants = wants_answers
        self._rest = b""
        self.origin_ns: int | None = None
        "start of the schedule, on the monotonic clock"
        self.issued_ns: int | None = None
        "when it reported that all requests are issued"
        self.all_issued = self.over = self.lost = False
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has already ended; take() reports that
            self._process.stdin.write(stdin)
            self._process.stdin.close()

    def __enter__(self) -> Generator:
        """Return self; the process is already running."""
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
        """See `Source`."""
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
        """See `Source`."""
        if self._wants and not self.lost:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._out, b"".join(map(NUMBER.pack, numbers)))

    def words(self) -> str:
        """Return the last line it printed, or the signal that killed it."""
        if (code := self._process.wait()) < 0:
            return f"killed by {child.signal_name(-code)}"
        lines = self._process.stderr.read().decode("utf-8", "replace").split("\n") if self._process.stderr else []
        return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "without a word")

    def check(self) -> None:
        """Raise if it ended too early.

        Raises:
            AttnbenchError: with its last line.
        """
        if self.lost:
            raise AttnbenchError(f"load: the generator's process ended before it was done: {self.words()}")


def scheduled(due_ns: Sequence[int]) -> Generator:
    """Start our own open-loop generator for a schedule: nanoseconds from the start, ascending."""
    data = b"".join([NUMBER.pack(len(due_ns)), *map(NUMBER.pack, due_ns)])
    return Generator("attnbench.loadtest.issuing.schedule", data, wants_answers=False)


def by_loadgen(settings: Settings) -> Generator:
    """Start a LoadGen test."""
    return Generator(
        "attnbench.loadtest.issuing.loadgen", json.dumps(dataclasses.asdict(settings)).encode(), wants_answers=True
    )
