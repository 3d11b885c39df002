"""The location of a history, a file of SQLite or a URL, and its name without secrets."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnbench.errors import Unavailable, UsageError, refusal

WHO = "history"
FILE = "history.sqlite"
VARIABLE = "ATTNBENCH_HISTORY"
OFF = "off"
"""Value of the variable that turns the history off."""

ACCEPTED = "postgresql://[USER[:PASSWORD]@]HOST[:PORT]/DATABASE, or sqlite:///FILE"
INSTALL = "pip install 'attnbench[postgresql]'"
A_PATH = re.compile(r"[\w./ -]+\.(db|sqlite3?)")
"""A file of SQLite without what makes it a URL; nothing in it can be a user or a password."""


@dataclass(frozen=True, slots=True)
class Place:
    """The location of one history."""

    name: str
    "printable: no user, no password"
    path: Path | None = None
    "file of SQLite"
    url: Any = field(default=None, repr=False)
    "URL of a server, as sqlalchemy's class"
    secrets: tuple[str, ...] = field(default=(), repr=False)


def find_place(url: str | None, folder: str | Path, environment: Mapping[str, str] = os.environ) -> Place | None:
    """Return the history named by a flag, the environment or the folder of run files, in this order.

    Args:
        url: value of --db.
        folder: folder of the run files.
        environment: environment variables.

    Returns:
        The location; None if the environment turns the history off.

    Raises:
        UsageError: it is not a supported URL.
        Unavailable: SQLAlchemy or the driver of the server is not installed.
    """
    field = "--db" if url is not None else VARIABLE
    text = (url if url is not None else environment.get(VARIABLE, "")).strip()
    if text == OFF:
        return None
    if not text:
        path = Path(folder) / FILE
        return Place(str(path), path)
    return _parse(text, field)


def require_sqlalchemy() -> None:
    """Check that the libraries of the history are installed.

    Raises:
        Unavailable: one is not installed.
    """
    for module in ("sqlalchemy", "alembic"):
        if not is_installed(module):
            raise Unavailable(f"{WHO}: module={module} is not installed; pip install sqlalchemy alembic")
    try:
        import sqlalchemy  # noqa: F401  # it may be there and not work
    except ImportError as error:
        raise Unavailable(
            f"{WHO}: module=sqlalchemy cannot be imported ({' '.join(str(error).split())}); "
            "pip install sqlalchemy alembic"
        ) from None


def is_installed(module: str) -> bool:
    """Return whether a module can be found, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


def _parse(text: str, field: str) -> Place:
    require_sqlalchemy()
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(text)
        # The text may hold a password, so no message repeats it.
    except (ArgumentError, ValueError):
        meant = f"; did you mean sqlite:///{text}?" if A_PATH.fullmatch(text) else ""
        raise UsageError(f"{WHO}: {field} is not the URL of a database; {ACCEPTED}{meant}") from None
    kind = url.get_backend_name() if url.drivername != "postgres" else "postgresql"
    if kind == "sqlite":
        if not url.database or url.database == ":memory:" or "\0" in url.database:
            raise UsageError(refusal(WHO, field, "sqlite:", "names no file", "sqlite:///FILE"))
        return Place(url.database, Path(url.database))
    if kind != "postgresql":
        raise UsageError(refusal(WHO, field, f"{kind}:", "is a database that is not supported", ACCEPTED))
    if "@" in (url.host or ""):  # a part of a password
        raise UsageError(f"{WHO}: {field} has two @; {ACCEPTED}; an @ in a password is written %40")
    name = "postgresql://" + (url.host or str(url.query.get("host", ""))) + (f":{url.port}" if url.port else "")
    name += f"/{url.database or ''}"
    if not is_installed("psycopg"):
        raise Unavailable(refusal(WHO, field, name, "needs the driver psycopg, which is not installed", INSTALL))
    hidden = (url.password, url.query.get("password"), url.query.get("sslpassword"))
    return Place(name, url=url.set(drivername="postgresql+psycopg"), secrets=tuple(str(one) for one in hidden if one))
