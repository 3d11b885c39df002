"""Files that are whole or not there: checked before anything is measured, replaced by a rename."""

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
    """Whether a file is there; a name that none can have (too long, a NUL, a folder not to be looked into) is none."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def is_folder(path: str | Path) -> bool:
    """The same of a folder."""
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):
        return False


def check_writable(path: str | Path) -> None:
    """Find out, before hours of measuring, that `path` cannot be written; leaves nothing behind.

    Missing folders are not an error: `write_bytes` makes them.

    Raises:
        UsageError: `path` is a folder, or its folder cannot be made or takes no files.
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
    """Put `data` at `path` as one step: a kill at any moment leaves the old file or the new one.

    A device or a pipe (``/dev/stdout``) is written to, not replaced; of a link the target is replaced.

    Raises:
        UsageError: it cannot be written.
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
    """`write_bytes` of a text in UTF-8, with what cannot be shown `spelled`.

    Raises:
        UsageError: it cannot be written.
    """
    write_bytes(path, spelled(text).encode())


def remove_drafts(path: str | Path) -> None:
    """Remove what processes that were killed while they wrote `path` have left beside it."""
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
    """Hand `data` to stdout as a file would have it, whatever the letters of the terminal."""
    sys.stdout.flush()
    if (raw := getattr(sys.stdout, "buffer", None)) is not None:
        raw.write(data)
    else:  # a notebook has text alone
        sys.stdout.write(data.decode("utf-8", "replace"))


def _check_unlocked(path: Path) -> None:
    """A rename would replace a file that its owner made read-only."""
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
    """Make the rename itself survive a power cut, where the system can open a folder."""
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
    """Whether `path` is there and neither a file nor a folder: a rename would put an end to it."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _refused(path: Path, error: OSError | ValueError) -> UsageError:
    words = getattr(error, "strerror", None) or str(error)
    wrong = f"cannot be written ({words})"
    return UsageError(refusal("output", "path", path, wrong, "a file in a folder you may write to"))
