"""A file locked by one process at a time with `flock`, which holds the name of its holder.

The system releases the lock when its holder ends, in any way.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import sys
from datetime import UTC, datetime
from pathlib import Path

from attnbench.text import for_terminal

LONGEST = 1000
"""Maximum bytes read from a lock file."""


def taken(place: Path) -> int | None:
    """Return a descriptor of the file, locked and signed; None if another process holds the lock.

    Raises:
        OSError: the file cannot be opened or locked.
    """
    handle = _open(place)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return None
        raise
    _sign(handle)
    return handle


def let_go(handle: int) -> None:
    """Unlock the descriptor that `taken` returned."""
    with contextlib.suppress(OSError):  # opened read-only
        os.ftruncate(handle, 0)
    os.close(handle)


def _open(place: Path) -> int:
    """Return a descriptor of the lock file, writable if permitted: another user may have created it."""
    flags = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    handle = -1
    while handle < 0:
        try:
            # Without O_CREAT, which Linux refuses for another user's file in a shared folder.
            handle = os.open(place, flags | os.O_RDWR)
        except PermissionError:
            handle = os.open(place, flags | os.O_RDONLY)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):  # another run was first
                handle = os.open(place, flags | os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
                os.fchmod(handle, 0o666)  # despite the umask: the next run may be another user's
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(handle)
        raise OSError(errno.EINVAL, "it is no plain file of its own")
    return handle


def _sign(handle: int) -> None:
    """Write the holder into the file: no user name, and only the words of the command that name the run."""
    words = [Path(word).name for word in (sys.argv[0] or "python", *sys.argv[1:3])]
    said = {"command": " ".join(words), "process": os.getpid(), "since": datetime.now(UTC).strftime("%H:%M:%S UTC")}
    with contextlib.suppress(OSError):
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(said).encode(), 0)


def holder(place: Path) -> str:
    """Return the holder written in the file."""
    try:
        with place.open("rb") as file:
            said = json.loads(file.read(LONGEST))
        return for_terminal(f"{said['command']} (process {said['process']}, since {said['since']})")
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "another run"
