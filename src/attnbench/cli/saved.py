"""Run files that exist: found by path or by id."""

from __future__ import annotations

import re
from pathlib import Path

from attnbench.errors import UsageError, refusal


def find_run(text: str, folder: str, who: str) -> Path:
    """Find a run file.

    Args:
        text: a path, or the id of a run in `folder`.
        folder: where run files are kept.
        who: for the message.

    Raises:
        UsageError: there is none, or two of one id.
    """
    path = Path(text)
    if _is_file(path):
        return path
    found = sorted(Path(folder).glob(f"*-{text}.json")) if re.fullmatch(r"[0-9a-f]{4,16}", text) else []
    if len(found) == 1:
        return found[0]
    if found:
        wrong = f"is the id of {len(found)} files in {folder}"
        raise UsageError(refusal(who, "RUN", text, wrong, "one of " + ", ".join(file.name for file in found)))
    latest = sorted(Path(folder).glob("*.json"))[-1:]
    todo = f"the latest is {latest[0]}" if latest else ""
    raise UsageError(refusal(who, "RUN", text, "is not there", f"a run file, or the id of one in {folder}", todo))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long a name, a NUL
        return False
