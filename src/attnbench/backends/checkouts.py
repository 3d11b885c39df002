"""Libraries that are on no package index: a backend imports them from a checkout that the user names."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from attnbench.errors import UsageError, refusal


def name_checkouts(folders: Iterable[str], who: str) -> None:
    """Set the environment variables of the backends whose library lies in one of the folders.

    Workers inherit them.  Each folder is recognised by the file of the backend's module.

    Raises:
        UsageError: a folder is no checkout that a backend looks for.
    """
    from attnbench.backends.registry import all_backends

    wanted = [
        (name, backend.checkout, backend.module)
        for name, backend in all_backends().items()
        if backend.checkout and backend.module
    ]
    for text in folders:
        folder = Path(text).expanduser().resolve()
        found = [variable for _, variable, module in wanted if _file(folder, module).is_file()]
        if not found:
            files = ", ".join(f"{_file(Path(), module)} ({name})" for name, _, module in wanted)
            raise UsageError(
                refusal(who, "--path", text, "is no checkout that a backend looks for", f"a folder that holds {files}")
            )
        os.environ.update(dict.fromkeys(found, str(folder)))


def _file(folder: Path, module: str) -> Path:
    return folder.joinpath(*module.split(".")).with_suffix(".py")
