"""Start a Python child process that finds the same packages as this process.

`Question` is for code that may crash, call ``exit()`` or hang: the child writes its answer to a file with `reply`, and
however the child ends, the caller gets an `Answer`.  A child dies with the process that started it, in whatever way.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LOOK_S = 0.02
PR_SET_PDEATHSIG = 1
ASKED_BY = "ATTNBENCH_ASKED_BY"
"""Environment variable of a `Question`'s child: the process that started it."""


def command(module: str, *args: str) -> list[str]:
    """Return the command line of ``python -m module``; -P keeps the current folder out of the search path."""
    return [sys.executable, "-P", "-m", module, *args]


def environment() -> dict[str, str]:
    """Return this process's environment plus its search path, so that an uninstalled ``src`` works too."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a child, or how it ended without one."""

    value: Any
    "value passed to `reply`; None if `reply` was not called"
    end: str | None
    "'crashed (SIGSEGV)', 'ended the process with code 3: last words', 'did not end within 60 s'"
    seconds: float
    code: int | None
    "with which it ended, negative for a signal; None if it did not end"


class Question:
    """A child process that computes an answer: ``python -m module ANSWER_FILE ARGS``.

    Args:
        module: module of attnbench; it calls `die_with_parent` first, and `reply` once.
        args: arguments of the module.
        folder: its working folder; None is a new empty folder.
    """

    def __init__(self, module: str, *args: str, folder: Path | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="attnbench-")
        place = Path(self._folder.name)
        self._answer, self._words = place / "answer.json", place / "stderr"
        self._began = time.perf_counter()
        with self._words.open("wb") as stderr:
            self._process = subprocess.Popen(
                command(module, str(self._answer), *args),
                env=environment() | {ASKED_BY: str(os.getpid())},
                cwd=folder or place,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )

    def answer(self, timeout_s: float) -> Answer | None:
        """Return the answer, or None while the child runs; the time limit `timeout_s` counts from its start."""
        code, seconds = self._process.poll(), time.perf_counter() - self._began
        if code is None and seconds < timeout_s:
            return None
        if self._answer.exists():
            return Answer(json.loads(self._answer.read_text()), None, seconds, code)
        end = f"did not end within {timeout_s:g} s" if code is None else self._death(code)
        return Answer(None, end, seconds, code)

    def end(self) -> None:
        """Kill the child if it still runs, and every process it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._folder.cleanup()

    def _death(self, code: int) -> str:
        how = f"crashed ({signal_name(-code)})" if code < 0 else f"ended the process with code {code}"
        lines = [line.strip() for line in self._words.read_text(errors="replace").splitlines() if line.strip()]
        return how + (f": {lines[-1][:200]}" if lines else "")


def signal_name(number: int) -> str:
    """Return a name such as ``SIGSEGV``; for real-time signals, most of which have no name, the number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def ask(module: str, *args: str, timeout_s: float, folder: Path | None = None) -> Answer:
    """Ask one question and wait for the answer; see `Question`."""
    question = Question(module, *args, folder=folder)
    try:
        while (answer := question.answer(timeout_s)) is None:
            time.sleep(LOOK_S)
        return answer
    finally:  # also on Ctrl-C: no child is left running
        question.end()


def die_with_parent(variable: str = ASKED_BY) -> None:
    """Have the kernel send SIGKILL when the parent dies (Linux); end now if it is already dead.

    Args:
        variable: environment variable with the parent's process id.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    parent = os.environ.get(variable)
    if parent and os.getppid() != int(parent):
        os._exit(0)


def reply(answer_file: str, value: Any) -> None:
    """Write the child's answer and exit without running exit handlers."""
    part = Path(f"{answer_file}.part")
    part.write_text(json.dumps(value))
    part.rename(answer_file)
    os._exit(0)
