"""Text from outside: escaped for storage and display, or refused as a name.

A name or a message may come from a library, a user's file, another machine's run file or a damaged database.  Text that
enters the data of a run is `spelled` (see `Spelled`); text for a terminal passes `for_terminal` (`cli.output`,
`report.terminal`).  Code in between need not handle it.
"""

from __future__ import annotations

import dataclasses
import operator
import os
import re
import reprlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from attnbench.errors import RunFileError

RUN_ID = re.compile(r"[0-9a-f]{4,16}")
"""Ids of runs, which are part of file names."""
AXIS = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
"""Names of a case's axes, which are columns, flags and parts of file names."""
DEEPEST = 8
"""Maximum nesting of free data in a file."""
UNSHOWN = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls except line feed and tab: ESC, carriage return, C1
    "\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"  # invisible, line ends, direction changes
    "\ud800-\udfff"  # surrogates: no encoding has them
    "\ufff9-\ufffb\ufffe\uffff\U000e0000-\U000e007f"  # invisible, and characters that XML (a workbook) may not contain
    "]"
)
SECRET_IN_URL = re.compile(r"(?<=\w)(:/+[^\s:/@?#]*):\S*@")
"From the end of the scheme; also with one slash, because `Path` reduces two slashes to one."
SECRET_BY_NAME = re.compile(r"(?i)((?:password|passwd|pwd|secret)=)[^\s&;,'\"]+")
HIDDEN = r"\1:***@"
_WITHOUT_TEXT = frozenset({float, int, bool, type(None)})
_SCALARS = _WITHOUT_TEXT | {str}
"""Types of nearly all values, checked first because `isinstance` is slower."""


def spelled(text: str) -> str:
    r"""Return `text` with every unprintable character written as an escape, ``\u001b``; nothing is lost.

    Line feeds and tabs stay.  The escapes are JSON's, so JSON stays JSON with the same meaning.
    """
    return text if text.isascii() and text.isprintable() else UNSHOWN.sub(_escape, text)


def without_passwords(text: str) -> str:
    """Return `text` with the password of each URL in it replaced by ``***``."""
    if ":/" in text:
        text = SECRET_IN_URL.sub(HIDDEN, text)
    return SECRET_BY_NAME.sub(r"\1***", text) if "=" in text else text


def for_terminal(text: str) -> str:
    """Return `text` fit for a terminal: no control sequences, no passwords."""
    return spelled(without_passwords(text))


class Short(reprlib.Repr):
    """How a message shows a value: deep or long values are cut, passwords removed before."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother, self.maxlong = 3, 60, 60, 60

    def repr_str(self, value: str, level: int) -> str:
        """Return a text, cut in its middle if it is too long."""
        return super().repr_str(without_passwords(value), level)


SHORT = Short()


def shown(value: object) -> str:
    """Return a value as a message shows it: in one line of at most 60 characters."""
    text = " ".join(SHORT.repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def check_id(run_id: str) -> None:
    """Refuse an invalid id of a run: it becomes part of a path.

    Raises:
        RunFileError: naming it.
    """
    if not RUN_ID.fullmatch(run_id):
        raise RunFileError(f"run.id={shown(run_id)} is not the id of a run; 4 to 16 of the digits 0-9 and a-f")


def check_case(case: Mapping[str, Any]) -> None:
    """Refuse a case whose axes have invalid names, or whose values are neither plain nor lists of plain values.

    Raises:
        RunFileError: naming the axis.
    """
    for name, value in case.items():
        if not AXIS.fullmatch(name):
            raise RunFileError(f"case: axis={shown(name)} is not the name of an axis; letters, digits and _")
        for item in value if isinstance(value, list | tuple) else (value,):
            if type(item) not in _SCALARS and not isinstance(item, str | int | float):
                accepted = "a text, a number, true, false, null, or a list of these"
                raise RunFileError(f"case.{name}={shown(value)} is not the value of an axis; {accepted}")


def check_depth(data: Any, where: str) -> None:
    """Refuse free data of a file that nests more than `DEEPEST` levels; the message names `where`.

    Raises:
        RunFileError: the data nests deeper.
    """
    level = [data]
    for _ in range(DEEPEST):
        level = [item for one in level if type(one) not in _SCALARS and isinstance(one, list | tuple | Mapping)
                 for item in (one.values() if isinstance(one, Mapping) else one)]  # fmt: skip
        if not level:
            return
    raise RunFileError(f"{where}: is nested too deeply; at most {DEEPEST} levels")


class Spelled:
    """Base of frozen dataclasses: texts in their fields, also in tuples and mappings, are `spelled`."""

    __slots__ = ()

    def __post_init__(self) -> None:
        """Replace texts that need it; all others stay the same objects."""
        kind: Any = type(self)
        for name in _textual(kind):
            value = getattr(self, name)
            if value and (plain := _spelled_within(value)) is not value:
                object.__setattr__(self, name, plain)


@cache
def _textual(cls: type) -> tuple[str, ...]:
    """Return the fields that may hold text, by their annotations."""
    fields = [(field.name, str(field.type)) for field in dataclasses.fields(cls)]
    return tuple(name for name, hint in fields if "str" in hint or "Any" in hint)


def _spelled_within(value: Any) -> Any:
    """Return `value` with its texts `spelled`; the same object if nothing changes."""
    kind = type(value)
    if kind is str:
        return value if value.isascii() and value.isprintable() else spelled(value)
    if kind in _WITHOUT_TEXT or not value:
        return value
    if kind is tuple or kind is list:
        found = [one if type(one) in _WITHOUT_TEXT else _spelled_within(one) for one in value]
        return value if all(map(operator.is_, found, value)) else kind(found)
    if kind is dict or isinstance(value, Mapping):
        held = [*value, *value.values()]
        found = _spelled_within(held)
        return value if found is held else dict(zip(found[: len(value)], found[len(value) :], strict=True))
    return value


def _escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def typed_path(text: str) -> Path:
    """Return the path that a user typed, ``~`` expanded; as it is where nobody has that home."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 (Path.expanduser raises for ~NAME of nobody)
