"""The parent's side: start a worker, give it a group, and find out how it ended.

The worker runs in a session of its own (Ctrl-C reaches the parent only), dies with the parent
(`serve` asks the kernel for that), and is replaced whenever it dies, hangs or says that its GPU
context is lost.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from attnbench.errors import RunFileError, WorkerError
from attnbench.machine import child
from attnbench.record import Environment, PlannedGroup, Record, Settings, Status, from_dict
from attnbench.worker.blame import HARNESS, BlamePage, Word, nameless_file
from attnbench.worker.private import without_paths
from attnbench.worker.protocol import PARENT, TURN, parse, send

POLL_S = 0.1
START_S = 300.0
"""A worker that has not said `ready` by then never will: importing torch from a cold disk takes a minute."""

COMPILE_PATIENCE = 5
"""Timeouts that the first call of a backend that says it compiles may take: nvcc takes minutes."""
HARNESS_PATIENCE = 10
"""Timeouts the harness itself has for one step: an oracle may take longer than any backend."""
LOG_TAIL = 1 << 16


@dataclass(frozen=True, slots=True)
class Loss:
    """A worker that did not finish its group."""

    status: Status
    "crashed, timeout or failed"
    word: Word
    reason: str


class Worker:
    """One measuring process.  Use as a context manager."""

    def __init__(self, device: str) -> None:
        self.page = BlamePage.create()
        self._log = nameless_file()
        to_worker, self._to = os.pipe()
        self._from, from_worker = os.pipe()
        handles = (self.page.handle, to_worker, from_worker)
        command = child.command("attnbench.worker", device, *map(str, handles))
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=handles,
            start_new_session=True,
            env={**child.environment(), PARENT: str(os.getpid())},
        )
        os.close(to_worker)
        os.close(from_worker)
        self._write = os.fdopen(self._to, "w", encoding="utf-8")
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._from, selectors.EVENT_READ)
        self._buffer = b""
        self.environment: Environment | None = None
        self._number = 0

    def __enter__(self) -> Worker:
        """Nothing to do: the process is running."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process, whatever it is doing."""
        self.close()

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return self._process.pid

    def start(self) -> Loss | None:
        """Wait until it is ready; a loss if it never is."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            for message in self._read():
                if message["say"] == "ready":
                    self.environment = from_dict(Environment, message["environment"], "worker.environment")
                    return None
            if self._ended():
                return self._loss()
        self.close()
        return Loss(Status.TIMEOUT, Word(0, HARNESS, "start"), f"the worker did not start within {START_S:.0f} s")

    def measure(
        self,
        group: PlannedGroup,
        settings: Settings,
        files: Sequence[str],
        *,
        on_record: Callable[[Record], None],
        on_word: Callable[[Word], None] = lambda word: None,
    ) -> float | Loss:
        """Have a group measured.

        Args:
            group: the backends still to be measured.
            settings: how.
            files: paths of --backends files, imported in the worker only.
            on_record: told each record as soon as it is final.
            on_word: told what the worker is doing, now and then.

        Returns:
            Seconds spent sampling, or how the worker was lost.
        """
        self._number += 1
        try:
            send(self._write, do="group", number=self._number, group=group, settings=settings, files=list(files))
        except BrokenPipeError:
            return self._loss()
        word, since = self.page.read(), time.monotonic()
        while True:
            try:
                for message in self._read():
                    if message["say"] == "record":
                        on_record(from_dict(Record, message["record"], "worker.record"))
                    elif message["say"] == "lost":
                        self.close()
                        lost = Word(word.count, int(message["index"]), str(message["phase"]))
                        return Loss(Status.FAILED, lost, str(message["reason"]))
                    elif message["say"] == "done" and message["number"] == self._number:
                        return float(message["sampling_s"])
            except (WorkerError, RunFileError) as error:
                # Somebody wrote into the pipe: nothing more it says can be believed.
                word = self.page.read()
                self.close()
                return Loss(Status.CRASHED, word, f"the worker's protocol broke during {word.phase}: {error}")
            now = self.page.read()
            if now != word:
                word, since = now, time.monotonic()
                on_word(word)
            if self._ended():
                return self._loss()
            patience = settings.timeout * _patience(word)
            if time.monotonic() - since > patience:
                self.close()
                return Loss(Status.TIMEOUT, word, f"no progress for {patience:g} s during {word.phase}")

    def close(self) -> None:
        """Kill the process, with what it started in its session, and release everything."""
        if self._log.closed:
            return
        # Its own death too leaves children behind, which may hold memory of the card.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._selector.close()
        with contextlib.suppress(BrokenPipeError):
            self._write.close()
        os.close(self._from)
        self._log.close()
        self.page.close()

    def _read(self) -> list[dict[str, Any]]:
        """Messages that have come, waiting up to POLL_S for the first."""
        if not self._selector.get_map() or not self._selector.select(POLL_S):
            return []
        data = os.read(self._from, 1 << 16)
        if not data:
            self._selector.unregister(self._from)
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        messages = [parse(line) for line in lines]
        if not all("say" in message for message in messages):
            raise WorkerError("worker: a line of its protocol says nothing")
        return messages

    def _ended(self) -> bool:
        """Whether the process is over and everything it said has been read."""
        return self._process.poll() is not None and (not self._selector.get_map() or not self._selector.select(0))

    def _loss(self) -> Loss:
        code = self._process.wait()
        word = self.page.read()
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - LOG_TAIL))
        lines = [line.strip() for line in self._log.read().decode(errors="replace").splitlines() if line.strip()]
        turns = [number for number, line in enumerate(lines, start=1) if TURN in line]
        lines = lines[max(turns, default=0):]
        said = f"; its last line was: {without_paths(lines[-1])[:200]}" if lines else ""
        how = f"killed by {child.signal_name(-code)}" if code < 0 else f"ended the process with exit code {code}"
        self.close()
        return Loss(Status.CRASHED, word, f"{how} during {word.phase}{said}")


def _patience(word: Word) -> int:
    """How many timeouts a step may take."""
    if word.index == HARNESS:
        return HARNESS_PATIENCE
    return COMPILE_PATIENCE if word.phase.endswith(": compiling") else 1
