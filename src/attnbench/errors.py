"""Every error a user can meet.

    AttnbenchError
    ├── UsageError          the request is wrong: answered in one line, exit code 2
    │   └── RunFileError    a run file is cut short, too new, or not one of ours
    ├── Unsupported         this backend cannot take this case (a fact of the library)
    ├── Unavailable         this backend, timer or tool cannot run on this machine
    ├── NothingToRun        nothing of what was asked for could run, exit code 3
    └── WorkerError         the measuring process broke its protocol (our own mistake)

A message reads ``<who>: <field>=<value> <what is wrong>; <what is accepted>[; <what to do>]``;
`refusal` writes it.  Low layers state the fact, the edges (`cli`, `sweep`) add the circumstances.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class AttnbenchError(Exception):
    """Root of the tree: what `except` at the edges catches, everything else is a bug."""

    exit_code = 1


class UsageError(AttnbenchError):
    """The request cannot be carried out as it stands."""

    exit_code = 2


class RunFileError(UsageError):
    """A run file that cannot be read: cut short, of a newer schema, or not ours."""


class Unsupported(AttnbenchError):
    """A backend refuses a case, and says which field and what it would accept."""


class Unavailable(AttnbenchError):
    """A library, timer, device or tool is missing or broken on this machine."""

    exit_code = 3


class NothingToRun(AttnbenchError):
    """Nothing of the request could run."""

    exit_code = 3


class WorkerError(AttnbenchError):
    """The worker process broke its protocol."""


def refusal(who: str, field: str, value: object, wrong: str, accepted: str, todo: str = "") -> str:
    """Word a refusal the one way this project words them."""
    text = f"{who}: {field}={value} {wrong}; {accepted}"
    return f"{text}; {todo}" if todo else text


def unknown(who: str, field: str, value: object, accepted: Iterable[str]) -> UsageError:
    """An unknown name, answered with the nearest known one and the whole list."""
    names = sorted(accepted)
    near = difflib.get_close_matches(str(value), names, n=1)
    todo = f"did you mean {near[0]}?" if near else ""
    return UsageError(refusal(who, field, value, "is not known", f"one of {', '.join(names)}", todo))
