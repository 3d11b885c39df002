"""The folder of captures, new each time and numbered if the name is taken, and the files attnbench adds to it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path

from attnbench.errors import UsageError, refusal
from attnbench.profile import tables
from attnbench.profile.capture import Capture, dumps
from attnbench.store.files import write_text


def open_folder(path: str | Path, *, force: bool) -> Path:
    """Create the folder for captures.

    Args:
        path: the requested path.
        force: use an existing folder and replace the files that are written again.

    Returns:
        `path`, or `path`-2, -3 … if it is taken.

    Raises:
        UsageError: the folder cannot be created or is not writable.
    """
    path = Path(path)
    try:
        if force:
            path.mkdir(parents=True, exist_ok=True)
            if not os.access(path, os.W_OK):
                raise PermissionError(None, "Permission denied")
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            one = path if number == 1 else path.with_name(f"{path.name}-{number}")
            try:
                one.mkdir()  # mkdir is atomic: two processes get different folders
            except FileExistsError:
                continue
            return one
    except (OSError, ValueError) as error:
        words = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            refusal("profile", "--out", path, f"cannot be made ({words})", "a folder you may write to")
        ) from None
    raise AssertionError("unreachable: itertools.count does not end")


def keep(folder: Path, captures: Sequence[Capture]) -> None:
    """Write kernels.csv and captures.json, each atomically."""
    write_text(folder / "kernels.csv", tables.to_csv(captures))
    write_text(folder / "captures.json", dumps(tuple(captures)))
