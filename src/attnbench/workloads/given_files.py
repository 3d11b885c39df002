"""Files that a user names on the command line or in a suite: block maps, captured tensors.

A run file contains no path: a case or a setting contains the file's name and the start of its SHA-256,
``map.npy@1a2b3c4d``.  The worker gets the file's path through an environment variable; a run that is repeated
elsewhere finds the file in the current folder.  Imports without torch.
"""

from __future__ import annotations

import hashlib
import os
import re
from functools import lru_cache
from pathlib import Path

from attnbench.errors import UsageError, refusal
from attnbench.text import typed_path

VARIABLE = "ATTNBENCH_GIVEN_FILES"
"Paths of files, separated as in PATH; set by the parent process for its workers."
DIGITS = 8
NAMED = re.compile(r"[^\s/\\@,]+\.(?:npy|safetensors)@[0-9a-f]{8}")
"The name of a file in a case or a setting."


def is_known(text: str) -> bool:
    """Return whether a text is a file name in the form returned by `known_as`."""
    return bool(NAMED.fullmatch(text))


def known_as(text: str, *, kind: str = "file") -> str:
    """Find a file by its path, or by a name returned before, and return its name and hash.

    Args:
        text: path, or name and hash.
        kind: file or folder; the hash of a folder is that of the names and sizes of its files.

    Raises:
        ValueError: it does not exist, cannot be read or has another hash.
    """
    path, digest = _parted(text)
    place = _place(typed_path(path), digest, kind)
    if place is None:
        raise ValueError(f"a {kind} that is there" + (f", with the SHA-256 {digest}…" if digest else ""))
    if any(letter.isspace() or letter in "@," for letter in place.name):
        raise ValueError(f"a {kind} whose name has no blank, comma or @")
    known = os.environ.get(VARIABLE, "").split(os.pathsep)
    if str(place) not in known:
        os.environ[VARIABLE] = os.pathsep.join([one for one in known if one] + [str(place)])
    return f"{place.name}@{digest or _hash_of(place)}"


def path_of(who: str, field: str, name: str, *, kind: str = "file") -> Path:
    """Return the path of a file or folder from its name returned by `known_as`.

    Raises:
        UsageError: it no longer exists.
    """
    path, digest = _parted(name)
    place = _place(Path(path), digest, kind)
    if place is None:
        raise UsageError(
            refusal(
                who,
                field,
                name,
                "is not there",
                f"a {kind} with this name and SHA-256",
                "put it in the current folder, or give its path",
            )
        )
    return place


def _parted(text: str) -> tuple[str, str]:
    """Path and hash; of a path alone no hash."""
    path, _, digest = text.rpartition("@") if "@" in text else (text, "", "")
    return path, digest


def _place(path: Path, digest: str, kind: str) -> Path | None:
    known = [Path(one) for one in os.environ.get(VARIABLE, "").split(os.pathsep) if one]
    for place in (path, *(one for one in reversed(known) if one.name == path.name)):
        try:
            there = place.is_dir() if kind == "folder" else place.is_file()
            if there and (not digest or _hash_of(place) == digest):
                return place.resolve()
        except OSError:
            continue
    return None


def _hash_of(path: Path) -> str:
    if path.is_file():
        return _digest(path, path.stat().st_mtime_ns)
    files = sorted((str(one.relative_to(path)), one.stat().st_size) for one in path.rglob("*") if one.is_file())
    return hashlib.sha256(repr(files).encode()).hexdigest()[:DIGITS]


@lru_cache(maxsize=64)
def _digest(path: Path, changed_ns: int) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:DIGITS]
