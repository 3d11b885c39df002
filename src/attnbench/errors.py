"""All errors that a user can meet.

    AttnbenchError
    ├── UsageError          the request is wrong: one-line message, exit code 2
    │   └── RunFileError    a run file is truncated, too new, or not written by attnbench
    ├── Unsupported         this backend does not support this case (a property of the library)
    ├── Unavailable         this backend, timer or tool cannot run on this machine
    ├── Crashed             a process started by a backend died
    ├── NothingToRun        nothing in the request could run, exit code 3
    └── WorkerError         the measuring process broke its protocol (a bug of attnbench)

A message reads ``<who>: <field>=<value> <what is wrong>; <what is accepted>[; <what to do>]``; `refusal` formats it.
Low layers state the fact; the top layers (`cli`, `sweep`) add the circumstances.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


class AttnbenchError(Exception):
    """Base class: the top layers catch this class; any other exception is a bug."""

    exit_code = 1


class UsageError(AttnbenchError):
    """The request cannot be executed as it is."""

    exit_code = 2


class RunFileError(UsageError):
    """A run file that cannot be read: truncated, of a newer schema, or not written by attnbench."""


class Unsupported(AttnbenchError):
    """A backend does not support a case; the message names the field and the supported values."""


class Unavailable(AttnbenchError):
    """A library, timer, device or tool is missing or broken on this machine."""

    exit_code = 3


class Crashed(AttnbenchError):
    """A process started by a backend died."""


class NothingToRun(AttnbenchError):
    """Nothing in the request could run."""

    exit_code = 3


class WorkerError(AttnbenchError):
    """The worker process broke its protocol."""


class UnknownName(ValueError):
    """A text is none of the accepted names, which the message lists: what a parser of a choice raises."""


def refusal(who: str, field: str, value: object, wrong: str, accepted: str, todo: str = "") -> str:
    """Return the message of a refusal in the project's form."""
    text = f"{who}: {field}={value} {wrong}; {accepted}"
    return f"{text}; {todo}" if todo else text


def unknown(who: str, field: str, value: object, accepted: Iterable[str]) -> UsageError:
    """Return the error for an unknown name, with the nearest known ones and the whole list."""
    names = sorted(accepted)
    todo = did_you_mean(nearest(str(value), names))
    return UsageError(refusal(who, field, value, "is not known", f"one of {', '.join(names)}", todo))


def parsed(who: str, field: str, text: str, parse: Callable[[str], T], shown: str | None = None) -> T:
    """Return a value given as text.

    Args:
        who: subject of the message.
        field: the flag or field with the value.
        text: the value as given.
        parse: raises ValueError with what is accepted.
        shown: the value as the message has it, if not `text`.

    Raises:
        UsageError: `parse` refuses the text.
    """
    try:
        return parse(text)
    except ValueError as error:
        wrong = "is not known" if isinstance(error, UnknownName) else "cannot be used"
        raise UsageError(refusal(who, field, shown or text or "''", wrong, str(error))) from None


def names_nothing(who: str, field: str, text: str, accepted: str = "values with commas between") -> UsageError:
    """Return the error for a list without a single value."""
    return UsageError(refusal(who, field, text, "names nothing", accepted))


FOLDER = "is a folder"


def message(error: BaseException) -> str:
    """The text of an exception; none of one whose class cannot say it."""
    try:
        return str(error)
    except Exception:  # the edge: a backend's own class
        return ""


def out_of_memory(error: BaseException) -> bool:
    """Return whether an exception of any library says that memory ran out."""
    words = message(error).lower()
    said = "out of memory" in words or "can't allocate memory" in words
    # torch's own class by its name: this module imports nothing.
    own = type(error).__name__ == "OutOfMemoryError"
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and (said or own))


def unreadable(error: Exception) -> str:
    """Say why a file could not be read as text: no such file, a folder, no text in UTF-8, or the system's reason."""
    if isinstance(error, FileNotFoundError):
        return "is not there"
    if isinstance(error, IsADirectoryError):
        return FOLDER
    if isinstance(error, UnicodeError):
        return "is not text in UTF-8"
    reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
    return f"cannot be read ({reason})"


def absent(path: str | Path) -> str:
    """Say what is wrong with a path: it is a folder, a file where one is asked for, a pipe or a device, or not there."""
    try:
        if Path(path).is_dir():
            return FOLDER
        if Path(path).is_file():
            return "is a file"
        return "is a pipe or a device" if Path(path).exists() else "is not there"
    except OSError:  # a name too long
        return "is not there"


def did_you_mean(near: Sequence[str]) -> str:
    """Return ``did you mean a, b or c?``; empty if `near` is."""
    return f"did you mean {' or '.join([', '.join(near[:-1]), near[-1]] if near[1:] else near)}?" if near else ""


def nearest(value: str, names: Iterable[str]) -> list[str]:
    """Return the names that the user may have meant: up to three that begin with `value`, shortest first, or else the
    most similar one.  Case, dashes and underscores are ignored."""
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
