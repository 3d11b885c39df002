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
from pathlib import Path
from typing import Self

_FORMAT = struct.Struct("<Qi48s")
"""Counter of words, index of the backend in the request, phase."""
HARNESS = -1
"""Index of the harness itself: nobody's backend."""

ALONE = ("probe", "set-up", "first call", "check", "memory")
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
    """The page, in a file that both processes map."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        self.path = path
        self._count = 0

    @classmethod
    def create(cls) -> Self:
        """A fresh page in the temporary folder (in memory where the system offers it)."""
        folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        handle, name = tempfile.mkstemp(prefix="attnbench-", suffix=".blame", dir=folder)
        with os.fdopen(handle, "wb") as file:
            file.write(bytes(mmap.PAGESIZE))
        page = cls(Path(name))
        page.say(HARNESS, "start")
        return page

    def say(self, index: int, phase: str) -> None:
        """Write the word; called by the worker."""
        self._count += 1
        _FORMAT.pack_into(self._page, 0, self._count, index, phase.encode()[:48])

    def read(self) -> Word:
        """Read the word; called by the parent."""
        count, index, phase = _FORMAT.unpack_from(self._page, 0)
        return Word(count, index, phase.rstrip(b"\0").decode())

    def close(self, *, remove: bool = False) -> None:
        """Unmap; the parent also removes the file."""
        self._page.close()
        if remove:
            self.path.unlink(missing_ok=True)
