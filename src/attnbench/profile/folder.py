"""The folder of captures: a fresh one each time, numbered where the name is taken."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from attnbench.errors import UsageError, refusal


def open_folder(path: str | Path, *, force: bool) -> Path:
    """Make the folder for captures.

    Args:
        path: as asked for.
        force: take a folder that is there, and replace in it what is written again.

    Returns:
        `path`, or `path`-2, -3 … where it is taken.

    Raises:
        UsageError: no folder can be made there, or none may be written to.
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
                one.mkdir()  # whoever makes it has it: two that start at once get one each
            except FileExistsError:
                continue
            return one
    except (OSError, ValueError) as error:
        words = getattr(error, "strerror", None) or str(error)
        raise UsageError(refusal("profile", "--out", path, f"cannot be made ({words})",
                                 "a folder you may write to")) from None
    raise AssertionError("unreachable: itertools.count does not end")
