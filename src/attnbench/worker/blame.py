"""The word of a worker: one shared page that says what it is doing.

The worker writes the backend and the phase before each step, launches of a batch included; when it
dies or hangs, the parent reads whom to blame.  A shared page costs a microsecond a word, needs no
system call, and survives the writer.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from dataclasses import dataclass
from typing import IO, Self

from attnbench.errors import NothingToRun, refusal

_FORMAT = struct.Struct("<Qi48s")
"""Counter of words, index of the backend in the request, phase."""
HARNESS = -1
"""Index of the harness itself: nobody's backend."""

ALONE = ("probe", "set-up", "first call", "check", "memory", "closing")
"""Phases in which only the named backend can have done it: the device is synchronised after each.
A phase may go into detail after a colon."""


@dataclass(frozen=True, slots=True)
class Word:
    """What a worker said last."""

    count: int
    index: int
    phase: str

    @property
    def alone(self) -> bool:
        """Whether only the named backend can have done it."""
        return self.phase.split(":")[0] in ALONE


class BlamePage:
    """The page, in a nameless file that both processes map."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self._page = mmap.mmap(handle, mmap.PAGESIZE)
        self._count = 0

    @classmethod
    def create(cls) -> Self:
        """A fresh page; whoever goes last takes it with him, in whatever way he goes."""
        with nameless_file() as file:
            file.truncate(mmap.PAGESIZE)
            page = cls(os.dup(file.fileno()))
        page.say(HARNESS, "start")
        return page

    def say(self, index: int, phase: str) -> None:
        """Write the word; called by the worker."""
        self._count += 1
        _FORMAT.pack_into(self._page, 0, self._count, index, phase.encode(errors="backslashreplace")[:48])

    def read(self) -> Word:
        """Read the word; called by the parent, at any moment: a word half written is no error."""
        count, index, phase = _FORMAT.unpack_from(self._page, 0)
        return Word(count, index, phase.rstrip(b"\0").decode(errors="ignore"))

    def close(self) -> None:
        """Unmap."""
        self._page.close()
        os.close(self.handle)


def nameless_file() -> IO[bytes]:
    """A file without a name: in memory where the system offers that, else in the temporary folder.

    Raises:
        NothingToRun: neither can be had.
    """
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("attnbench"), "w+b")
    try:
        return tempfile.TemporaryFile("w+b")
    except OSError as error:
        folder = os.environ.get("TMPDIR", "not set")
        wrong = f"gives no folder for temporary files ({error.strerror})"
        raise NothingToRun(refusal("worker", "TMPDIR", folder, wrong, "a folder you may write to")) from None
