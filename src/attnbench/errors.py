"""Every error a user can meet.

    AttnbenchError
    ├── UsageError          the request is wrong: answered in one line, exit code 2
    │   └── RunFileError    a run file is cut short, too new, or not one of ours
    ├── Unsupported         this backend cannot take this case (a fact of the library)
    ├── Unavailable         this backend, timer or tool cannot run on this machine
    ├── Crashed             a process that a backend started for itself died
    ├── NothingToRun        nothing of what was asked for could run, exit code 3
    └── WorkerError         the measuring process broke its protocol (our own mistake)

A message reads ``<who>: <field>=<value> <what is wrong>; <what is accepted>[; <what to do>]``;
`refusal` writes it.  Low layers state the fact, the edges (`cli`, `sweep`) add the circumstances.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


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


class Crashed(AttnbenchError):
    """A process that a backend started for itself died."""


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
    todo = did_you_mean(nearest(str(value), names))
    return UsageError(refusal(who, field, value, "is not known", f"one of {', '.join(names)}", todo))


def did_you_mean(near: Sequence[str]) -> str:
    """``did you mean a, b or c?``; empty where nothing is near."""
    return f"did you mean {' or '.join([', '.join(near[:-1]), near[-1]] if near[1:] else near)}?" if near else ""


def nearest(value: str, names: Iterable[str]) -> list[str]:
    """What a person may have meant: names that begin with `value`, shortest first and at most three, else the one
    that is most like it.  Case, dashes and underscores make no difference."""
    plain = {name: _plain(name) for name in names}
    wanted = _plain(value)
    same = [name for name, text in plain.items() if text == wanted]
    begun = sorted(
        (name for name, text in plain.items() if len(wanted) > 1 and text.startswith(wanted)),
        key=lambda name: (len(name), name),
    )
    alike = difflib.get_close_matches(wanted, plain.values(), n=1, cutoff=0.65)
    return same[:1] or begun[:3] or [name for name, text in plain.items() if text in alike][:1]


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
