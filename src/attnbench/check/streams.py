"""Standard input, output and error of the process: Python's streams and their file descriptors."""

from __future__ import annotations

import fcntl
import os
import sys
from contextlib import suppress
from functools import partial
from typing import Any

from attnbench.check.setting import Setting

NAMES = ("stdin", "stdout", "stderr")
COPIES_FROM = 200
"""Lowest descriptor of the copies: a backend that closes a range of low ones does not close them."""

_copies: dict[int, int] = {}
"""A copy of each of the three descriptors, from which it is restored."""


def streams() -> tuple[Setting, ...]:
    """Return the descriptor of each before the Python stream over it."""
    return tuple(
        one
        for number, name in enumerate(NAMES)
        for one in (
            Setting(f"file of {name}", partial(_file, number), partial(_put_file_back, number), shown=False),
            Setting(f"sys.{name}", partial(_stream, name), partial(_put_stream_back, name), shown=False),
        )
    )


def _identity(number: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(number)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _file(number: int) -> tuple[int, int] | None:
    """Return the identity of the open file; a copy of the descriptor is kept when it is first seen."""
    found = _identity(number)
    if found is not None and number not in _copies:
        with suppress(OSError):  # the user's limit of open files is lower
            _copies[number] = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, COPIES_FROM)
    return found


def _put_file_back(number: int, then: tuple[int, int] | None) -> None:
    if then is None:
        with suppress(OSError):
            os.close(number)
    elif _identity(_copies[number]) == then:
        os.dup2(_copies[number], number)


def _stream(name: str) -> Any:
    """Return the stream, or the one that it stands in for; `None` if that one was closed."""
    stream = getattr(sys, name, None)
    try:
        closed = stream is None or stream.closed
    except Exception:  # a backend may have put any object there
        return stream
    return None if closed else _stand_ins.get(id(stream), stream)


_stand_ins: dict[int, Any] = {}
"""For closed streams, by the identity of the object in their place (kept alive by `_kept`)."""
_kept: list[Any] = []


def _put_stream_back(name: str, then: Any) -> None:
    setattr(sys, name, then)
    if then is not None and _stream(name) is None:
        new = open(NAMES.index(name), "r" if name == "stdin" else "w", closefd=False)  # noqa: SIM115
        _kept.append(new)
        _stand_ins[id(new)] = then
        setattr(sys, name, new)
