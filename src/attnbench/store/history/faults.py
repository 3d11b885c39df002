"""Turn errors of a database into one-line messages."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from attnbench.errors import UsageError, refusal
from attnbench.store.history.place import WHO, Place

DAMAGED = ("is damaged", "move it away and fill a new one: attnbench history --add RESULTS")
SQLITE = {
    "SQLITE_BUSY": ("is locked by another process", "try again when that is done"),
    "SQLITE_LOCKED": ("is locked by another process", "try again when that is done"),
    "SQLITE_FULL": ("has no room to grow", "a disk with room"),
    "SQLITE_READONLY": ("may only be read", "a file and folder you may write to"),
    "SQLITE_CANTOPEN": ("cannot be opened", "a file in a folder you may read and write"),
    "SQLITE_PERM": ("cannot be opened", "a file in a folder you may read and write"),
    "SQLITE_AUTH": ("cannot be opened", "a file in a folder you may read and write"),
    "SQLITE_NOTADB": ("is not a database", "a history written by attnbench"),
    "SQLITE_CORRUPT": DAMAGED,
    "SQLITE_CONSTRAINT": DAMAGED,
    "SQLITE_MISMATCH": DAMAGED,
    "SQLITE_IOERR": ("cannot be read or written", "a disk that works and has room"),
}
SERVER = {
    "53": ("has no room or no memory left", "a server with room"),
    "55P03": ("is locked by another process", "try again when that is done"),
    "40": ("was changed by another process meanwhile", "try again"),
    "57": ("ended the connection", "try again"),
    "25006": ("may only be read", "a server that takes writes"),
    "42501": ("refuses this user", "a user who may make and write tables"),
    "28": ("refuses this user or password", "the right URL"),
    "3D000": ("is not there", "make it first: createdb"),
    "08": ("cannot be reached", "a server that runs"),
    "42P01": DAMAGED,
    "42703": DAMAGED,
}
"""By SQLSTATE, or by its class, the first two letters."""
MISSING = ("no such ", "has no column", "could not decode", "malformed")
"""SQLite's words for a missing table or column, or for invalid text."""


class Damaged(Exception):
    """The database is inconsistent: it was truncated, overwritten or edited."""


@contextmanager
def faults_as_usage_errors(place: Place) -> Iterator[None]:
    """Turn failures of the database into a `UsageError`.

    Raises:
        UsageError: naming the history and its fault.
    """
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except Damaged as error:
        wrong, accepted = DAMAGED
        raise UsageError(refusal(WHO, "db", place.name, f"{wrong} ({error})", accepted)) from None
    except (SQLAlchemyError, sqlite3.Error, UnicodeDecodeError) as error:
        wrong, accepted = _words(error, place)
        raise UsageError(refusal(WHO, "db", place.name, wrong, accepted)) from None


def _words(error: Exception, place: Place) -> tuple[str, str]:
    # SQLAlchemy's text repeats the statement and all its values; the driver's is one sentence.
    cause = getattr(error, "orig", None) or error
    if isinstance(cause, UnicodeDecodeError):  # bytes of a damaged page in SQLite's own message
        return DAMAGED
    name = getattr(cause, "sqlite_errorname", None)
    if name:
        for known, words in SQLITE.items():
            if name.startswith(known):
                return words
    if isinstance(cause, sqlite3.Error) and any(words in str(cause).lower() for words in MISSING):
        return f"{DAMAGED[0]} ({cause})", DAMAGED[1]
    state = getattr(cause, "sqlstate", None)
    for known in (state, state[:2]) if state else ():
        if known in SERVER:
            return SERVER[known]
    # The first line is the reason, the others are hints.
    said = next((line.strip() for line in str(cause).splitlines() if line.strip()), type(cause).__name__)
    for secret in place.secrets:
        said = said.replace(secret, "***")
    if place.url is not None and state is None:
        return f"cannot be reached ({said})", "a server that runs, and its URL"
    return f"does not do it ({said})", "a database that works"
