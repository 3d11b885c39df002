"""What a worker is doing, on a page of memory that it shares with its parent.

The worker writes the backend and the phase before each step, launches of a batch included; when it dies or hangs, the
parent reads whom to blame.  To write costs a microsecond and no system call, and the page survives the writer.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
import tempfile
from dataclasses import dataclass
from typing import Self

from attnbench.errors import NothingToRun, refusal
from attnbench.worker.supervisor import PRINTED, PRINTED_AT

_FORMAT = struct.Struct("<Qi48s")
"""Count of steps, index of the backend in the request, phase."""
HARNESS = -1
"""Index of the harness itself: nobody's backend."""
_ENOUGH_AT = 128
"""A byte of the worker's: what it samples will be a record after the round in hand."""
_ASKED_AT = 192
"""A byte of the parent's: the request is to end after the round in hand."""


@dataclass(frozen=True, slots=True)
class Activity:
    """What a worker wrote last."""

    count: int
    index: int
    phase: str


class ActivityPage:
    """The page, in a nameless file that both processes map."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self._page = mmap.mmap(handle, mmap.PAGESIZE)
        self._count = 0

    @classmethod
    def create(cls) -> Self:
        """A fresh page; whoever goes last takes it with him, in whatever way he goes."""
        page = cls(shared_memory(mmap.PAGESIZE))
        page.announce(HARNESS, "start")
        return page

    def announce(self, index: int, phase: str) -> None:
        """Say what comes next; called by the worker."""
        self._count += 1
        _FORMAT.pack_into(self._page, 0, self._count, index, phase.encode(errors="backslashreplace")[:48])

    def read(self) -> Activity:
        """What was written last; called by the parent, at any moment: half an entry is no error."""
        count, index, phase = _FORMAT.unpack_from(self._page, 0)
        # A backend may have written to the page: what is not ours is not shown.
        text = phase.partition(b"\0")[0].decode(errors="ignore")
        return Activity(count, index, "".join(letter for letter in text if letter.isprintable()))

    def printed(self) -> int:
        """Bytes that the worker printed so far, as far as its supervisor has read them."""
        return int(PRINTED.unpack_from(self._page, PRINTED_AT)[0])

    def say_enough(self, enough: bool) -> None:
        """Say whether samples are there that the end of a round makes records."""
        self._page[_ENOUGH_AT] = enough

    def enough(self) -> bool:
        """Whether the worker, asked to end, hands over records that are worth waiting for."""
        return bool(self._page[_ENOUGH_AT])

    def ask_to_end(self) -> None:
        """Have the worker end its request after the round in hand; called by the parent, whose page may be closed."""
        with contextlib.suppress(ValueError):
            self._page[_ASKED_AT] = 1

    def asked_to_end(self) -> bool:
        """Whether the worker is to end its request."""
        return bool(self._page[_ASKED_AT])

    def close(self) -> None:
        """Unmap."""
        self._page.close()
        os.close(self.handle)


def shared_memory(size: int) -> int:
    """A file without a name, of `size` zeros: in memory where the system offers that, else in the temporary folder.

    Returns:
        Its descriptor.  In memory its size is sealed: a process that cut it would end all others that map it.

    Raises:
        NothingToRun: neither can be had.
    """
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("attnbench", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.truncate(handle, size)
        except OSError as error:  # it counts as a file
            os.close(handle)
            wrong, accepted = f"are not to be had ({error.strerror})", "a larger limit of files' sizes (ulimit -f)"
            raise NothingToRun(refusal("worker", "bytes of shared memory", size, wrong, accepted)) from None
        fcntl.fcntl(handle, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        return handle
    try:
        with tempfile.TemporaryFile("w+b") as file:
            file.truncate(size)
            return os.dup(file.fileno())
    except OSError as error:
        folder = os.environ.get("TMPDIR", "not set")
        wrong = f"gives no folder for temporary files ({error.strerror})"
        raise NothingToRun(refusal("worker", "TMPDIR", folder, wrong, "a folder you may write to")) from None
