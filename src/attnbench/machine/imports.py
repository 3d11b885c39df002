"""Whether a library really imports, tried in a process of its own.

An import can crash, call ``exit()`` or hang; none of that reaches the caller.  The same file is the
child: ``python -m attnbench.machine.imports MODULE ANSWER_FILE``.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from attnbench.machine import child

TIMEOUT_S = 60.0
LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class ImportOutcome:
    """How an import ended."""

    state: Literal["imported", "missing", "broken"]
    reason: str | None
    "None for imported"
    seconds: float


def try_imports(
    modules: Iterable[str], *, timeout_s: float = TIMEOUT_S, at_once: int = 1,
    done: Callable[[str], None] = lambda module: None,
) -> dict[str, ImportOutcome]:
    """Import each module in a fresh process of its own.

    Args:
        modules: dotted names.
        timeout_s: after which a hanging import is ended, with every process it started.
        at_once: how many run side by side.
        done: called with each module that ended.
    """
    waiting = list(dict.fromkeys(modules))
    running: list[_Attempt] = []
    outcomes: dict[str, ImportOutcome] = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                running.append(_Attempt(waiting.pop(0)))
            for attempt in list(running):
                outcome = attempt.outcome(timeout_s)
                if outcome is not None:
                    outcomes[attempt.module] = outcome
                    running.remove(attempt)
                    attempt.end()
                    done(attempt.module)
            time.sleep(LOOK_S)
    finally:  # Ctrl-C leaves no import behind
        for attempt in running:
            attempt.end()
    return outcomes


class _Attempt:
    """One import under way."""

    def __init__(self, module: str) -> None:
        self.module = module
        self._folder = tempfile.TemporaryDirectory(prefix="attnbench-")
        self._answer, self._words = Path(self._folder.name) / "answer.json", Path(self._folder.name) / "stderr"
        self._began = time.perf_counter()
        with self._words.open("wb") as stderr:
            self._process = subprocess.Popen(
                child.command("attnbench.machine.imports", module, str(self._answer)), env=child.environment(),
                cwd=self._folder.name, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr,
                start_new_session=True,
            )

    def outcome(self, timeout_s: float) -> ImportOutcome | None:
        """How it ended, or None while it runs."""
        code, seconds = self._process.poll(), time.perf_counter() - self._began
        if code is None and seconds < timeout_s:
            return None
        if code is None:
            return ImportOutcome("broken", f"import {self.module} did not end within {timeout_s:g} s", seconds)
        if self._answer.exists():
            told = json.loads(self._answer.read_text())
            return ImportOutcome(told["state"], told["reason"], seconds)
        return ImportOutcome("broken", _death(self.module, code, self._words), seconds)

    def end(self) -> None:
        """End what still runs of it, the processes it started included."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._folder.cleanup()


def _death(module: str, code: int, words: Path) -> str:
    how = f"crashed ({signal.Signals(-code).name})" if code < 0 else f"ended the process with code {code}"
    lines = [line.strip() for line in words.read_text(errors="replace").splitlines() if line.strip()]
    return f"import {module} {how}" + (f": {lines[-1][:200]}" if lines else "")


def _child(module: str, answer: Path) -> None:
    """Import, write down how it went, and leave without waiting for anyone's exit handlers."""
    state, reason = "imported", None
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        name = error.name or ""
        own = name == module or module.startswith(f"{name}.")
        state = "missing" if own else "broken"
        reason = f"module {name} is not installed" if own else f"needs module {name}, which is not installed"
    except BaseException as error:  # a stranger's import may raise anything, SystemExit included
        state, reason = "broken", f"{type(error).__name__}: {_first_line(error)}"
    part = answer.with_suffix(".part")
    part.write_text(json.dumps({"state": state, "reason": reason}))
    part.rename(answer)
    os._exit(0)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else "no message"


if __name__ == "__main__":
    _child(sys.argv[1], Path(sys.argv[2]))
