"""The backends in a user's file (`--backends ./mine.py`), listed without importing the file in this process.

Importing the file may crash, call ``exit()`` or hang.  So a child process imports it and reports which backends it
defines (``python -m attnbench.suites.user_backends ANSWER_FILE FILE``), and which configurations one of them has for a
case (``… FILE NAME CASE``).  Apart from that child, only workers import the file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.backends.base import Backend
from attnbench.backends.describe import Described, describe, describe_configs
from attnbench.backends.registry import A_FILE, all_backends, introduced
from attnbench.errors import UsageError, absent, refusal
from attnbench.machine.child import ask, die_with_parent, reply

if TYPE_CHECKING:
    from attnbench.workloads.base import Case
TIMEOUT_S = 60.0


def known_backends(files: Sequence[str] = ()) -> dict[str, Backend]:
    """Return every backend by name, those of `files` as `Described`.

    Raises:
        UsageError: see `user_backends`.
    """
    return introduced({**all_backends(), **user_backends(files)})


def user_backends(files: Sequence[str]) -> dict[str, Backend]:
    """Return the backends of the files, in their order.

    Args:
        files: paths of Python files with backends.

    Raises:
        UsageError: a file is missing, does not import or holds no backend, or two share a name.
    """
    places: dict[str, str] = {}
    found: dict[str, Backend] = {}
    for file in dict.fromkeys(files):
        for backend in _described(file, _stamp(file), Path.cwd()):
            if backend.name in found:
                both = f"{places[backend.name]} and {file}"
                raise UsageError(
                    refusal(
                        "backends",
                        "name",
                        backend.name,
                        f"is defined twice: {both}",
                        "one backend a name",
                        "rename one of them",
                    )
                )
            found[backend.name], places[backend.name] = backend, file
    return found


@cache
def _described(file: str, stamp: tuple[int, int], folder: Path) -> tuple[Described, ...]:
    """Return a file's backends; the child runs once for each state of the file."""

    def configs(name: str, case: Case) -> Mapping[str, Any]:
        return _configs(file, stamp, folder, name, json.dumps(case.to_dict()))

    return tuple(Described(description, configs) for description in _ask(folder, file))


@cache
def _configs(file: str, stamp: tuple[int, int], folder: Path, name: str, case: str) -> Mapping[str, Any]:
    """Return a backend's configurations; the child runs once for each case and state of the file."""
    found: Mapping[str, Any] = _ask(folder, file, name, case)
    return found


def _ask(folder: Path, file: str, *question: str) -> Any:
    answer = ask("attnbench.suites.user_backends", file, *question, timeout_s=TIMEOUT_S, folder=folder)
    if answer.end is not None:
        wrong = f"does not import: it {answer.end}"
        raise UsageError(refusal("backends", "file", file, wrong, A_FILE))
    if "refused" in answer.value:
        raise UsageError(answer.value["refused"])
    return answer.value["described"]


def _stamp(file: str) -> tuple[int, int]:
    try:
        if not Path(file).is_file():
            raise FileNotFoundError
        state = Path(file).stat()
    except (OSError, ValueError):  # missing, a name too long, a NUL
        raise UsageError(refusal("backends", "file", file, absent(file), A_FILE)) from None
    if not file.endswith(".py"):
        raise UsageError(refusal("backends", "file", file, "does not end in .py", A_FILE))
    return state.st_mtime_ns, state.st_size


def _child(answer_file: str, file: str, *question: str) -> None:
    die_with_parent()
    try:
        value: dict[str, Any] = {
            "described": describe_configs(file, question[0], json.loads(question[1])) if question else describe(file)
        }
    except UsageError as error:
        value = {"refused": str(error)}
    reply(answer_file, value)


if __name__ == "__main__":
    _child(*sys.argv[1:])
