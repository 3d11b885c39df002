"""Check whether a library imports, in a process of its own.

An import can crash, call ``exit()`` or hang without effect on the caller.  This file is also the child process:
``python -m attnbench.machine.imports ANSWER_FILE MODULE``.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from attnbench.machine.child import LOOK_S, Question, die_with_parent, reply

TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class ImportOutcome:
    """The outcome of an import."""

    state: Literal["imported", "missing", "broken"]
    reason: str | None
    "None if imported"
    seconds: float


def try_imports(
    modules: Iterable[str],
    *,
    timeout_s: float = TIMEOUT_S,
    at_once: int = 1,
    done: Callable[[str], None] = lambda module: None,
) -> dict[str, ImportOutcome]:
    """Import each module in a fresh process of its own.

    Args:
        modules: dotted names.
        timeout_s: time limit after which a hanging import and every process it started are killed.
        at_once: number of imports at a time.
        done: called with each finished module.
    """
    waiting = list(dict.fromkeys(modules))
    running: dict[str, Question] = {}
    outcomes: dict[str, ImportOutcome] = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                module = waiting.pop(0)
                running[module] = Question("attnbench.machine.imports", module)
            for module, question in list(running.items()):
                outcome = _outcome(question, module, timeout_s)
                if outcome is not None:
                    outcomes[module] = outcome
                    running.pop(module).end()
                    done(module)
            time.sleep(LOOK_S)
    finally:  # also on Ctrl-C: no child is left running
        for question in running.values():
            question.end()
    return outcomes


def _outcome(question: Question, module: str, timeout_s: float) -> ImportOutcome | None:
    """Return the outcome of an import, or None while it runs."""
    answer = question.answer(timeout_s)
    if answer is None:
        return None
    if answer.end is not None:
        return ImportOutcome("broken", f"import {module} {answer.end}", answer.seconds)
    return ImportOutcome(answer.value["state"], answer.value["reason"], answer.seconds)


def _child(answer: str, module: str) -> None:
    """Import the module and write the outcome."""
    state, reason = "imported", None
    die_with_parent()
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        name = error.name or ""
        own = name == module or module.startswith(f"{name}.")
        state = "missing" if own else "broken"
        reason = f"module {name} is not installed" if own else f"needs module {name}, which is not installed"
    except BaseException as error:  # an import may raise anything, SystemExit included
        state, reason = "broken", f"{type(error).__name__}: {_first_line(error)}"
    reply(answer, {"state": state, "reason": reason})


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else "no message"


if __name__ == "__main__":
    _child(sys.argv[1], sys.argv[2])
