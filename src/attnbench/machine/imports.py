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
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from attnbench.machine import child

TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class ImportOutcome:
    """How an import ended."""

    state: Literal["imported", "missing", "broken"]
    reason: str | None
    "None for imported"
    seconds: float


def try_import(module: str, timeout_s: float = TIMEOUT_S) -> ImportOutcome:
    """Import a module in a fresh process.

    Args:
        module: dotted name.
        timeout_s: after which a hanging import is ended, with every process it started.
    """
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="attnbench-") as folder:
        answer, words = Path(folder) / "answer.json", Path(folder) / "stderr"
        with words.open("wb") as stderr:
            process = subprocess.Popen(
                child.command("attnbench.machine.imports", module, str(answer)), env=child.environment(), cwd=folder,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True,
            )
            try:
                code: int | None = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        seconds = time.perf_counter() - began
        if code is None:
            return ImportOutcome("broken", f"import {module} did not end within {timeout_s:g} s", seconds)
        if answer.exists():
            told = json.loads(answer.read_text())
            return ImportOutcome(told["state"], told["reason"], seconds)
        return ImportOutcome("broken", _death(module, code, words), seconds)


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
