"""Find existing runs by path or id, as files or in the history."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from attnbench.errors import AttnbenchError, UsageError, absent, refusal
from attnbench.record import Run
from attnbench.store.files import is_file
from attnbench.store.load_file import ENDING, LoadRun
from attnbench.text import RUN_ID

NAMED = {"latest": 1, "previous": 2}
"""Names for the newest runs of a folder, by position from the end."""
RUN_FILE = re.compile(r"\d{8}T\d{6}Z-.*\.json")
"""Names of files by `runfile.default_path`: the start time comes first."""


def names_a_run(text: str) -> bool:
    """Return whether a text is a name and not a path: latest, previous or an id, and no file has this name."""
    return (text in NAMED or RUN_ID.fullmatch(text) is not None) and not is_file(Path(text))


def find_run(text: str, folder: str, who: str) -> Path:
    """Find a run file.

    Args:
        text: a path, the id of a run in `folder`, latest or previous.
        folder: where run files are kept.
        who: subject of error messages.

    Raises:
        UsageError: no run matches, or two have this id.
    """
    path = _file(text, folder, who)
    if path is not None:
        return path
    kept, why_not = _kept(text, folder)
    if kept is not None:
        line = shlex.join(["attnbench", "history", "--restore", kept[0]])
        line += "" if folder == "results" else f" --out {shlex.quote(folder)}"
        raise UsageError(refusal(who, "RUN", text, "is in the history alone", "a run file", f"{line} writes it"))
    raise _nowhere(text, folder, who, why_not)


def read_run(text: str, folder: str, who: str, *, statistics: bool = True) -> tuple[Path, Run]:
    """Read a run from its file, or from the history if the file is gone.

    Args:
        text: a path, the id of a run in `folder` or in the history, latest or previous.
        folder: where run files are kept.
        who: subject of error messages.
        statistics: see `runfile.read`.

    Returns:
        The path where its file is, or was; and the run.

    Raises:
        UsageError: no run matches, two have this id, or it cannot be read.
    """
    from attnbench.store.runfile import default_path, loads, read

    path = _file(text, folder, who)
    if path is not None:
        return path, read(path, statistics=statistics)
    kept, why_not = _kept(text, folder)
    if kept is None:
        raise _nowhere(text, folder, who, why_not)
    run = loads(kept[1], who=kept[0], statistics=statistics)
    return default_path(run, folder), run


def read_load(text: str, folder: str, who: str) -> tuple[Path, LoadRun] | None:
    """Return the path and the result of a load; None if the name is not that of a load.

    Args:
        text: a path, an id in `folder`, latest or previous.
        folder: where results are kept.
        who: subject of error messages.

    Raises:
        UsageError: two results have this id, or it cannot be read.
    """
    from attnbench.store.load_file import is_load, loads

    path = _file(text, folder, who, ENDING)
    try:
        found = None if path is None else path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return None  # reading it as a run reports the error
    return (path, loads(found, who=str(path))) if path is not None and found and is_load(found[:200]) else None


def _file(text: str, folder: str, who: str, *more: str) -> Path | None:
    """Return the file that a name means; `more` are further suffixes, of files beside run files."""
    path = Path(text)
    if is_file(path):
        return path
    if text in NAMED:
        return _named(text, folder, who, more)
    endings = (".json", *more) if RUN_ID.fullmatch(text) else ()
    found = [file for ending in endings for file in _files(folder, f"*-{text}{ending}")]
    if len(found) > 1:
        wrong = f"is the id of {len(found)} files in {folder}"
        raise UsageError(refusal(who, "RUN", text, wrong, "one of " + ", ".join(file.name for file in found)))
    return found[0] if found else None


def _named(text: str, folder: str, who: str, more: Sequence[str] = ()) -> Path:
    """Return the run file that was started last, or the one before; see `_file` for `more`.

    Raises:
        UsageError: there are fewer runs.
    """
    found = _runs(folder, more)
    if len(found) < NAMED[text]:
        has = f"{folder} has {len(found) or 'no'} run{'s' * (len(found) != 1)}"
        raise UsageError(refusal(who, "RUN", text, "is not there", f"a run file, or the id of one in {folder}", has))
    return found[-NAMED[text]]


def _runs(folder: str, more: Sequence[str] = ()) -> list[Path]:
    """Return the run files of a folder, the one started last at the end; see `_file` for `more`."""
    found = [
        path
        for path in _files(folder, "*.json")
        if RUN_FILE.fullmatch(path.name) and (not path.name.endswith(ENDING) or ENDING in more)
    ]
    return sorted(found, key=_begun)


def _begun(path: Path) -> tuple[str, int]:
    """Return the start time of a run; within one second, the modification time of the file decides."""
    try:
        written = path.stat().st_mtime_ns
    except OSError:
        written = 0
    return path.name.split("-", 1)[0], written


def _kept(text: str, folder: str) -> tuple[tuple[str, str] | None, str]:
    """Return id and text of a run in the history of a folder; else None, and why the history could not be read."""
    if not RUN_ID.fullmatch(text):
        return None, ""
    from attnbench.store.history.opening import open_history
    from attnbench.store.history.place import find_place, is_installed
    from attnbench.store.history.reading import ids, text_of
    from attnbench.store.history.writing import SHORT_PATIENCE_S

    try:
        place = find_place(None, folder)
        if place is None or (place.path is not None and not (is_file(place.path) and is_installed("sqlalchemy"))):
            return None, ""
        with open_history(place, write=False, patience_s=SHORT_PATIENCE_S) as history:
            return (text_of(history, text) if ids(history, text) else None), ""
    except AttnbenchError as error:
        return None, f"the history could not be read: {error}"


def _nowhere(text: str, folder: str, who: str, why_not: str) -> UsageError:
    latest = _runs(folder)[-1:]
    todo = why_not or (f"the latest is {latest[0]}" if latest else "")
    return UsageError(refusal(who, "RUN", text, absent(text), f"a run file, or the id of one in {folder}", todo))


def _files(folder: str, pattern: str) -> list[Path]:
    try:
        return sorted(Path(folder).glob(pattern))
    except (OSError, ValueError):
        return []
