"""A lock of the run file: of two processes that resume a run, the last to write would remove the other's rows.

A file beside the run file is locked while the run is carried out, and removed at its end; a dead process holds no lock.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from attnbench.errors import Unavailable, UsageError, refusal
from attnbench.machine.lock_file import holder, let_go, taken

WITHOUT = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors of a file system without locks, on which two runs into one file are not detected."""


@contextlib.contextmanager
def sole_writer(path: Path) -> Iterator[None]:
    """While open, prevents other processes from carrying out a run into `path`.

    Raises:
        Unavailable: another process does.
        UsageError: no file can be created in its folder.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():  # a device or a pipe
        yield
        return
    place, made = path.with_name(f".{path.name[:200]}.lock"), not path.parent.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = _taken(place)
    except OSError as error:
        if error.errno not in WITHOUT:
            wrong = f"cannot be locked ({error.strerror})"
            raise UsageError(refusal("output", "path", path, wrong, "a file in a folder you may write to")) from None
        yield
        return
    if handle is None:
        wrong = f"is being written by {holder(place)}"
        raise Unavailable(refusal("attnbench", "run", path.name, wrong, "a run that nobody carries out", "wait for it"))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # before unlocking, so that a process that has it open tries again
            place.unlink()
        let_go(handle)
        if made:
            with contextlib.suppress(OSError):  # the folder is not empty
                path.parent.rmdir()


def _taken(place: Path) -> int | None:
    """Lock the file that now has this name: its last holder may have removed the one that was opened."""
    while (handle := taken(place)) is not None:
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), place.stat()):
                break
        os.close(handle)
    return handle
