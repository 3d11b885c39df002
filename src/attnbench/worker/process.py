"""The parent's side: starts a worker, sends it a group, and determines how it ended.

The worker runs under a supervisor (`worker.supervisor`) in its own session: Ctrl-C reaches only the parent, and no
process that a backend started outlives the run.  The worker is replaced when it dies, hangs or says that it cannot
measure any more.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from attnbench.errors import WorkerError
from attnbench.machine import child
from attnbench.machine.compile_cache import pinned
from attnbench.machine.device import Device
from attnbench.record import INTERRUPTED, Environment, PlannedGroup, Record, Settings, Status
from attnbench.worker import supervisor
from attnbench.worker.activity import HARNESS, Activity, ActivityPage, shared_memory
from attnbench.worker.private import without_paths
from attnbench.worker.protocol import PARENT, TURN, Answer, Done, Gone, Ready, Recorded, answer, send

POLL_S = 0.1
START_S = 300.0
"""Time limit for `ready`: importing torch from a cold disk takes a minute."""
END_S = 10.0
"""Time limit for the supervisor to end all processes; it takes milliseconds."""

COMPILE_PATIENCE = 5
"""Timeouts that the first call may take if the backend says that it compiles: nvcc takes minutes."""
HARNESS_PATIENCE = 10
"""Timeouts that one step of the harness may take: an oracle may take longer than any backend."""
LONGEST_LINE = 1 << 28
"""Upper limit of a message, bytes: a million samples by every timer take half of it."""

OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
"""Signals from outside: from the kernel when memory runs out, from an operator, or at the end of a job."""

NO_REASON = "no reason was given"
"""Reason of a lost worker whose message is empty, or only a folder, which is removed."""


@dataclass(frozen=True, slots=True)
class Loss:
    """How a worker was lost before it finished its group."""

    status: Status
    "crashed, timeout or failed"
    activity: Activity
    reason: str
    outside: bool = False
    "ended by a signal from outside"
    stuck: bool = False
    "it ended itself, because a backend changed a global that cannot be restored"
    interrupted: bool = False
    "the run was to end"

    def __post_init__(self) -> None:
        """Make the reason fit for a record: without folders and passwords, and never empty."""
        object.__setattr__(self, "reason", without_paths(self.reason).strip() or NO_REASON)


def interruption(name: str, activity: Activity) -> Loss:
    """Return the loss of a worker that ends because the run is to end."""
    words = f"{INTERRUPTED} by {name} during {activity.phase}; --resume measures it again"
    return Loss(Status.SKIPPED, activity, words, interrupted=True)


def ended_from_outside(record: Record) -> bool:
    """Return whether a signal from outside ended the record's worker, or the end of the run left it without time."""
    killed = re.match(rf"(killed|{INTERRUPTED}) by (SIG\w+) during ", record.reason or "")
    ending = Status.CRASHED if killed and killed[1] == "killed" else Status.SKIPPED
    return record.status is ending and killed is not None and killed[2] in {one.name for one in OUTSIDE}


def cut_short(record: Record) -> bool:
    """Return whether a record has fewer samples than requested because the run was to end."""
    return record.time is not None and record.time.stopped_by == INTERRUPTED


class Worker:
    """One measuring process.  Use as a context manager."""

    def __init__(self, device: Device) -> None:
        self.page = ActivityPage.create()
        ring = shared_memory(supervisor.Ring.SIZE)
        self._log = supervisor.Ring(ring)
        self._log.begin()
        to_worker, self._to = os.pipe()
        self._from, from_worker = os.pipe()
        control, self._control = os.pipe()
        handles = [self.page.handle, to_worker, from_worker]
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-S",
                supervisor.__file__,
                *map(str, (os.getpid(), control, ring, self.page.handle)),
                json.dumps(handles),
                *child.command("attnbench.worker", str(device), *map(str, handles)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(*handles, control, ring),
            start_new_session=True,
            env={**child.environment(), **pinned(), PARENT: str(os.getpid())},
        )
        for handle in (to_worker, from_worker, control, ring):
            os.close(handle)
        self._write = os.fdopen(self._to, "w", encoding="utf-8")
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._from, selectors.EVENT_READ)
        self._buffer = bytearray()
        self._closed = False
        self.environment: Environment | None = None
        self._number = 0
        self._ending: str | None = None
        "name of the signal that ends the run"
        self._at_once = False

    def __enter__(self) -> Worker:
        """Return the worker; the process is already running."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process, whatever it is doing."""
        self.close()

    @property
    def pid(self) -> int:
        """Process id of the worker's supervisor, which ends after the worker."""
        return self._process.pid

    def start(self) -> Loss | None:
        """Wait until it is ready; return a loss if that never happens."""
        deadline = time.monotonic() + START_S
        try:
            while time.monotonic() < deadline:
                for message in self._read():
                    if isinstance(message, Ready):
                        self.environment = message.environment
                        return None
                if self._ended():
                    return self._loss()
                if self._ending is not None:
                    return self._interrupted(self._ending)
        except WorkerError as error:
            return self._broken(error)
        self.close()
        return Loss(Status.TIMEOUT, Activity(0, HARNESS, "start"), f"the worker did not start within {START_S:.0f} s")

    def measure(
        self,
        group: PlannedGroup,
        settings: Settings,
        files: Sequence[str],
        *,
        on_record: Callable[[Record], None],
        on_activity: Callable[[Activity], None] = lambda activity: None,
    ) -> float | Loss:
        """Measure a group.

        Args:
            group: the backends still to be measured.
            settings: of the run.
            files: paths of --backends files, imported in the worker only.
            on_record: called with each record as soon as it is final.
            on_activity: called from time to time with what the worker is doing.

        Returns:
            Seconds spent sampling, or how the worker was lost.

        `on_record` may refuse a record by raising `WorkerError`; no further message of the worker is accepted then.
        """
        self._number += 1
        self.page.say_enough(False)
        activity, since = self.page.read(), time.monotonic()  # before the request: every later activity is progress
        try:
            send(self._write, do="group", number=self._number, group=group, settings=settings, files=list(files))
        except BrokenPipeError:
            return self._loss()
        while True:
            # Decided before reading: what the worker sent before that is in the pipe, and is kept.
            ending = self._ending
            if not self._at_once and self.page.enough():
                ending = None
            try:
                for message in self._read(POLL_S if ending is None else 0.0):
                    if isinstance(message, Recorded):
                        on_record(message.record)
                    elif isinstance(message, Gone):
                        return self._gone(message)
                    elif isinstance(message, Done) and message.number == self._number:
                        return message.sampling_s
            except WorkerError as error:
                return self._broken(error)
            if ending is not None:
                return self._interrupted(ending)
            now = self.page.read()
            if now != activity:
                activity, since = now, time.monotonic()
                on_activity(activity)
            if self._ended():
                return self._loss()
            patience = settings.timeout * _patience(activity)
            if time.monotonic() - since > patience:
                self.close()
                return Loss(Status.TIMEOUT, activity, f"no progress for {patience:g} s during {activity.phase}")

    def interrupt(self, name: str, *, at_once: bool) -> None:
        """End the run; called from the handler of signal `name` or from another thread.

        `measure` waits for the current round if its samples will be enough, unless it must end `at_once`.
        """
        self.page.ask_to_end()
        self._ending, self._at_once = self._ending or name, at_once

    def terminate(self) -> None:
        """End the process with all it started; called from another thread; `measure` returns the loss."""
        self._process.terminate()

    def close(self) -> None:
        """End the process with all it started, and free all resources."""
        if self._closed:
            return
        self._closed = True
        os.close(self._control)
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:  # it was stopped, or waits for a process that cannot be killed
            self._process.kill()
            self._process.wait()
        self._selector.close()
        with contextlib.suppress(BrokenPipeError):
            self._write.close()
        os.close(self._from)
        self._log.close()
        self.page.close()

    def _read(self, wait_s: float = POLL_S) -> list[Answer]:
        """Return the messages received, waiting up to `wait_s` for the first, or for the end of a process that is mute.

        One call reads as much as a pipe holds.
        """
        if not self._selector.get_map():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(wait_s)
            return []
        if not self._selector.select(wait_s):
            return []
        data = os.read(self._from, 1 << 16)
        if not data:
            self._selector.unregister(self._from)
        self._buffer += data
        if b"\n" not in data:
            if len(self._buffer) > LONGEST_LINE:
                raise WorkerError(f"worker: a line of its protocol is longer than {LONGEST_LINE} bytes")
            return []
        *lines, self._buffer = self._buffer.split(b"\n")
        return [answer(bytes(line)) for line in lines]

    def _ended(self) -> bool:
        """Return whether the process has ended and all its messages have been read."""
        return self._process.poll() is not None and (not self._selector.get_map() or not self._selector.select(0))

    def _interrupted(self, name: str) -> Loss:
        activity = self.page.read()
        self.close()
        return interruption(name, activity)

    def _gone(self, message: Gone) -> Loss:
        """Return the loss of a worker that announced its end; not waited for, because its context may hang."""
        activity = Activity(self.page.read().count, message.index, message.phase)
        self.close()
        return Loss(Status.FAILED, activity, message.reason, stuck=message.say == "stuck")

    def _broken(self, error: WorkerError) -> Loss:
        """Return the loss after an invalid message: something else wrote into the pipe, which is no longer trusted."""
        activity = self.page.read()
        self.close()
        return Loss(Status.CRASHED, activity, f"the worker's protocol broke during {activity.phase}: {error}")

    def _loss(self) -> Loss:
        code = self._process.wait()
        if self._ending is not None:
            return self._interrupted(self._ending)
        activity = self.page.read()
        printed, ended, last = self._log.read()
        code = code if ended is None else ended
        lines = [line.strip() for line in last.decode(errors="replace").splitlines() if line.strip()]
        turns = [number for number, line in enumerate(lines, start=1) if TURN in line]
        lines = lines[max(turns, default=0) :]
        said = f"; its last line was: {without_paths(lines[-1])[:200]}" if lines else ""
        dropped = f"; it printed {printed} bytes, of which the last {len(last)} are kept" if printed > len(last) else ""
        how = f"killed by {child.signal_name(-code)}" if code < 0 else f"ended the process with exit code {code}"
        self.close()
        return Loss(Status.CRASHED, activity, f"{how} during {activity.phase}{said}{dropped}", outside=-code in OUTSIDE)


def _patience(activity: Activity) -> int:
    """Return how many timeouts a step may take."""
    if activity.index == HARNESS:
        return HARNESS_PATIENCE
    return COMPILE_PATIENCE if activity.phase.endswith(": compiling") else 1
