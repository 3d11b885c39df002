"""Starting a Python of ours as a child that finds the same packages as this process.

`Question` is for what may crash, call ``exit()`` or hang: the child writes its answer to a file with
`reply`, and however it ends, the caller has an `Answer`.
"""

from __future__ import annotations

import contextlib
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


def command(module: str, *args: str) -> list[str]:
    """Command line of ``python -m module``; -P keeps the current folder out of its search path."""
    return [sys.executable, "-P", "-m", module, *args]


def environment() -> dict[str, str]:
    """This process's environment with its search path, so that ``src`` uninstalled works too."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a child said, or how it ended without a word."""

    value: Any
    "what it gave to `reply`; None where it never did"
    end: str | None
    "'crashed (SIGSEGV)', 'ended the process with code 3: last words', 'did not end within 60 s'"
    seconds: float


class Question:
    """A child at work on an answer: ``python -m module ANSWER_FILE ARGS``.

    Args:
        module: of ours; it calls `reply` once.
        args: for the module.
        folder: where it works; None is an empty folder of its own.
    """

    def __init__(self, module: str, *args: str, folder: Path | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="attnbench-")
        place = Path(self._folder.name)
        self._answer, self._words = place / "answer.json", place / "stderr"
        self._began = time.perf_counter()
        with self._words.open("wb") as stderr:
            self._process = subprocess.Popen(
                command(module, str(self._answer), *args),
                env=environment(),
                cwd=folder or place,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )

    def answer(self, timeout_s: float) -> Answer | None:
        """The answer, or None while it works; it is given `timeout_s` from its start."""
        code, seconds = self._process.poll(), time.perf_counter() - self._began
        if code is None and seconds < timeout_s:
            return None
        if self._answer.exists():
            return Answer(json.loads(self._answer.read_text()), None, seconds)
        end = f"did not end within {timeout_s:g} s" if code is None else self._death(code)
        return Answer(None, end, seconds)

    def end(self) -> None:
        """End what still runs of it, the processes it started included."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._folder.cleanup()

    def _death(self, code: int) -> str:
        how = f"crashed ({signal_name(-code)})" if code < 0 else f"ended the process with code {code}"
        lines = [line.strip() for line in self._words.read_text(errors="replace").splitlines() if line.strip()]
        return how + (f": {lines[-1][:200]}" if lines else "")


def signal_name(number: int) -> str:
    """``SIGSEGV``; of real-time signals, most of which have no name, the number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def ask(module: str, *args: str, timeout_s: float, folder: Path | None = None) -> Answer:
    """Ask one question and wait; see `Question`."""
    question = Question(module, *args, folder=folder)
    try:
        while (answer := question.answer(timeout_s)) is None:
            time.sleep(LOOK_S)
        return answer
    finally:  # Ctrl-C leaves no child behind
        question.end()


def reply(answer_file: str, value: Any) -> None:
    """The child's last word: it leaves without waiting for anyone's exit handlers."""
    part = Path(f"{answer_file}.part")
    part.write_text(json.dumps(value))
    part.rename(answer_file)
    os._exit(0)
