"""Activity page: what a worker is doing, in memory that it shares with its parent.

The worker writes the backend and the phase before each step, including each launch of a batch.  When it dies or hangs,
the parent reads which backend to blame.  A write takes a microsecond and no system call, and the page survives the
writer.
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
"""Number of steps, index of the backend in the request, phase."""
HARNESS = -1
"""Index of the harness itself, which is no backend."""
_ENOUGH_AT = 128
"""Byte written by the worker: its samples will make records when the current round ends."""
_ASKED_AT = 192
"""Byte written by the parent: the request is to end after the current round."""


@dataclass(frozen=True, slots=True)
class Activity:
    """The last entry that a worker wrote."""

    count: int
    index: int
    phase: str


class ActivityPage:
    """The page, in an unnamed file that both processes map."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self._page = mmap.mmap(handle, mmap.PAGESIZE)
        self._count = 0
        self._forked = False

    @classmethod
    def create(cls) -> Self:
        """Create a new page; it is freed when the last process that maps it ends, however it ends."""
        page = cls(shared_memory(mmap.PAGESIZE))
        page.announce(HARNESS, "start")
        return page

    def announce(self, index: int, phase: str) -> None:
        """Write the step that comes next; called by the worker."""
        if self._forked:
            os._exit(0)
        self._count += 1
        _FORMAT.pack_into(self._page, 0, self._count, index, phase.encode(errors="backslashreplace")[:48])

    def end_at_next_step(self) -> None:
        """End this process at its next `announce`; called in a process that a backend forked from the worker."""
        self._forked = True

    def read(self) -> Activity:
        """Return the last entry; called by the parent, at any moment: a half-written entry is no error."""
        count, index, phase = _FORMAT.unpack_from(self._page, 0)
        # A backend may have written to the page, so bytes that are no text are dropped.
        text = phase.partition(b"\0")[0].decode(errors="ignore")
        return Activity(count, index, "".join(letter for letter in text if letter.isprintable()))

    def printed(self) -> int:
        """Return the bytes that the worker has printed so far, as far as its supervisor has read them."""
        return int(PRINTED.unpack_from(self._page, PRINTED_AT)[0])

    def say_enough(self, enough: bool) -> None:
        """Write whether there are enough samples for records when the current round ends."""
        self._page[_ENOUGH_AT] = enough

    def enough(self) -> bool:
        """Return whether the worker, asked to end, will send records that are worth waiting for."""
        return bool(self._page[_ENOUGH_AT])

    def ask_to_end(self) -> None:
        """Ask the worker to end its request after the current round; called by the parent; works on a closed page."""
        with contextlib.suppress(ValueError):
            self._page[_ASKED_AT] = 1

    def asked_to_end(self) -> bool:
        """Return whether the worker is to end its request."""
        return bool(self._page[_ASKED_AT])

    def close(self) -> None:
        """Unmap the page."""
        self._page.close()
        os.close(self.handle)


def shared_memory(size: int) -> int:
    """Create an unnamed file of `size` zeros: in memory where the system offers that, else in the temporary folder.

    Returns:
        Its file descriptor.  In memory its size is sealed: shrinking it would crash all processes that map it.

    Raises:
        NothingToRun: neither can be created.
    """
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("attnbench", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.truncate(handle, size)
        except OSError as error:  # the limit of file sizes applies to it
            os.close(handle)
            wrong, accepted = f"cannot be allocated ({error.strerror})", "a larger file size limit (ulimit -f)"
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
