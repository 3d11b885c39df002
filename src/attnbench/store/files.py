"""Write files atomically: check the path before measuring, write a draft, rename it."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
import tempfile
from pathlib import Path

from attnbench.errors import UsageError, refusal
from attnbench.text import spelled


def is_file(path: str | Path) -> bool:
    """Return whether a file exists; False for an impossible name (too long, a NUL, a folder that may not be read)."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def is_folder(path: str | Path) -> bool:
    """Return whether a folder exists; False for an impossible name."""
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):
        return False


def check_writable(path: str | Path) -> None:
    """Check, before hours of measuring, that `path` can be written; leave nothing behind.

    Missing folders are not an error: `write_bytes` creates them.

    Raises:
        UsageError: `path` is a folder, or its folder cannot be created or written to.
    """
    path = Path(path)
    try:
        if path.is_dir():
            raise IsADirectoryError(None, "Is a directory")
        if _is_special(path):
            return
        _check_unlocked(path)
        folder = path.resolve().parent
        while not folder.exists():
            folder = folder.parent
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, ValueError) as error:
        raise _refused(path, error) from None


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write `data` to `path` atomically: a kill at any moment leaves the old file or the new one.

    A device or a pipe (``/dev/stdout``) is written to, not replaced; for a link, the target is replaced.

    Raises:
        UsageError: the path cannot be written.
    """
    path = Path(path)
    try:
        if _is_special(path):
            path.write_bytes(data)
        else:
            _check_unlocked(path)
            _replace(path.resolve(), data)
    except (OSError, ValueError) as error:
        raise _refused(path, error) from None


def write_text(path: str | Path, text: str) -> None:
    """Write a text in UTF-8 with `write_bytes`; characters that cannot be encoded are `spelled`.

    Raises:
        UsageError: the path cannot be written.
    """
    write_bytes(path, spelled(text).encode())


def remove_drafts(path: str | Path) -> None:
    """Remove the drafts of `path` left by processes that were killed while writing."""
    path = Path(path).resolve()
    with contextlib.suppress(OSError):
        for draft in path.parent.iterdir():
            writer = re.fullmatch(re.escape(_draft(path, "")) + r"(\d+)\.tmp", draft.name)
            if writer and not _is_running(int(writer[1])):
                draft.unlink(missing_ok=True)


def _draft(path: Path, rest: str) -> str:
    return f".{path.name[:200]}.{rest}"


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def write_stdout(data: bytes) -> None:
    """Write `data` to stdout unchanged, whatever the encoding of the terminal."""
    sys.stdout.flush()
    if (raw := getattr(sys.stdout, "buffer", None)) is not None:
        raw.write(data)
    else:  # a notebook's stdout takes text only
        sys.stdout.write(data.decode("utf-8", "replace"))


def _check_unlocked(path: Path) -> None:
    """Refuse a read-only file: a rename would replace it all the same."""
    if path.exists() and not os.access(path, os.W_OK):
        raise PermissionError(None, "Permission denied")


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(_draft(path, f"{os.getpid()}.tmp"))
    try:
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power failure, if the system can open a folder."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)


def _is_special(path: Path) -> bool:
    """Return whether `path` is a device, pipe or socket, which a rename would destroy."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _refused(path: Path, error: OSError | ValueError) -> UsageError:
    words = getattr(error, "strerror", None) or str(error)
    wrong = f"cannot be written ({words})"
    return UsageError(refusal("output", "path", path, wrong, "a file in a folder you may write to"))
