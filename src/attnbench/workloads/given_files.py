"""Files that a user names on the command line or in a suite: block maps, captured tensors.

A run file names no path: a case or a setting holds the file's name and the start of its SHA-256,
``map.npy@1a2b3c4d``.  Where the file lies is told to the worker by an environment variable; a run that is repeated
elsewhere finds it in the current folder.  Imports without torch.
"""

from __future__ import annotations

import hashlib
import os
import re
from functools import lru_cache
from pathlib import Path

from attnbench.errors import UsageError, refusal

VARIABLE = "ATTNBENCH_GIVEN_FILES"
"Paths of files, separated as in PATH; set by this process for its workers."
DIGITS = 8
NAMED = re.compile(r"[^\s/\\@,]+\.(?:npy|safetensors)@[0-9a-f]{8}")
"How a case or a setting holds a file."


def is_known(text: str) -> bool:
    """Whether a text is a file as `known_as` names it."""
    return bool(NAMED.fullmatch(text))


def known_as(text: str) -> str:
    """Find a file by its path, or by what this function returned before, and say its name and hash.

    Raises:
        ValueError: it is not there, cannot be read or is another than was meant.
    """
    path, _, digest = text.rpartition("@") if "@" in text else (text, "", "")
    place = _place(Path(path).expanduser(), digest)
    if place is None:
        raise ValueError("a file that is there" + (f", with the SHA-256 {digest}…" if digest else ""))
    if any(letter.isspace() or letter in "@," for letter in place.name):
        raise ValueError("a file whose name has no blank, comma or @")
    known = os.environ.get(VARIABLE, "").split(os.pathsep)
    if str(place) not in known:
        os.environ[VARIABLE] = os.pathsep.join([one for one in known if one] + [str(place)])
    return f"{place.name}@{digest or _digest(place, place.stat().st_mtime_ns)}"


def path_of(who: str, field: str, name: str) -> Path:
    """Where a file lies that `known_as` named.

    Raises:
        UsageError: it is not there any more.
    """
    plain, _, digest = name.rpartition("@")
    place = _place(Path(plain), digest)
    if place is None:
        raise UsageError(refusal(who, field, name, "is not there", "a file with this name and SHA-256",
                                 "put it in the current folder, or give its path"))
    return place


def _place(path: Path, digest: str) -> Path | None:
    known = [Path(one) for one in os.environ.get(VARIABLE, "").split(os.pathsep) if one]
    for place in (path, *(one for one in reversed(known) if one.name == path.name)):
        try:
            if place.is_file() and (not digest or _digest(place, place.stat().st_mtime_ns) == digest):
                return place.resolve()
        except OSError:
            continue
    return None


@lru_cache(maxsize=64)
def _digest(path: Path, changed_ns: int) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:DIGITS]
