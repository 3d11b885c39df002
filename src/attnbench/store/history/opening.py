"""Open a history: create it if missing, migrate it to this release's schema, refuse it if newer.

The migrations create the schema of a new history too, so there is one way to it.  They run in one exclusive
transaction, so any number of processes may open at once.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from attnbench.errors import UsageError, refusal
from attnbench.store.history.faults import Damaged, faults_as_usage_errors
from attnbench.store.history.place import WHO, Place, require_sqlalchemy
from attnbench.text import shown

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

STEPS = Path(__file__).with_name("migrations")
LATEST = "0001"
"""Name of the last migration; a test compares it with the folder, which takes alembic to read."""

OURS = "attnbench_"
VERSION_TABLE = f"{OURS}version"
STEP = re.compile(r"[0-9]{4}")
PATIENCE_S = 30.0
"""Time to wait for other writers."""

LOCK = 0x61747462
"""Key of the advisory lock of transactions that migrate a database on a server."""


@contextmanager
def open_history(place: Place, *, write: bool, patience_s: float = PATIENCE_S) -> Iterator[Connection]:
    """Open a history for one process; each ``connection.begin()`` is a transaction.

    Args:
        place: its file or URL.
        write: if False, create and change nothing.
        patience_s: seconds to wait for a lock.

    Raises:
        Unavailable: a library is missing.
        UsageError: it cannot be opened, is locked, is not a history or of a newer attnbench; also for any failure of
            the database until the block ends.
    """
    require_sqlalchemy()
    with faults_as_usage_errors(place):
        engine = _engine(place, write, patience_s)
        try:
            with engine.connect() as connection:
                _bring_up(connection, place, write)
                yield connection
        finally:
            engine.dispose()


def _engine(place: Place, write: bool, patience_s: float) -> Engine:
    from sqlalchemy import create_engine, event
    from sqlalchemy.pool import NullPool

    if place.path is None:
        waits = {"connect_timeout": max(2, round(patience_s)), "options": f"-c lock_timeout={round(1000 * patience_s)}"}
        given = place.url.query
        waits = {name: value for name, value in waits.items() if name not in given}
        return create_engine(place.url, poolclass=NullPool, connect_args=waits, hide_parameters=True)
    path = place.path
    if write:
        _make_folder(place)
    elif not _is_there(place):
        raise UsageError(
            refusal(
                WHO,
                "db",
                place.name,
                "is not there",
                "a history that runs were added to",
                "attnbench history --add RESULTS fills one from run files",
            )
        )
    engine = create_engine(
        "sqlite://", poolclass=NullPool, hide_parameters=True, creator=lambda: _connect(path, write, patience_s)
    )
    # The driver begins its transactions late, and one that upgrades from reading to writing cannot wait for its lock.
    begin = "BEGIN IMMEDIATE" if write else "BEGIN"
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))
    return engine


def _is_there(place: Place) -> bool:
    assert place.path is not None
    try:
        return place.path.exists()
    except (OSError, ValueError) as error:  # a folder that may not be read, a name too long, a NUL
        raise _closed(place, error) from None


def _closed(place: Place, error: OSError | ValueError) -> UsageError:
    why = getattr(error, "strerror", None) or str(error)
    return UsageError(
        refusal(WHO, "db", place.name, f"cannot be opened ({why})", "a file in a folder you may read and write")
    )


def _make_folder(place: Place) -> None:
    assert place.path is not None
    try:
        place.path.parent.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise _closed(place, error) from None


def _connect(path: Path, write: bool, patience_s: float) -> sqlite3.Connection:
    def connect(mode: str) -> sqlite3.Connection:
        uri = f"file:{quote(str(path.absolute()))}?{mode}"
        return sqlite3.connect(uri, uri=True, timeout=patience_s, isolation_level=None)

    if write:
        connection = connect("mode=rwc")
        try:
            _share(connection)
        except BaseException:
            connection.close()
            raise
        return connection
    connection = connect("mode=ro")
    try:
        connection.execute("SELECT 1 FROM sqlite_master")
    except sqlite3.OperationalError as error:
        # Readers of a shared file create files beside it.  If they may not, read it as is unless it has a writer.
        if error.sqlite_errorname.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")) or _has_journal(path):
            connection.close()
            raise
        connection.close()
        return connect("mode=ro&immutable=1")
    except BaseException:
        connection.close()
        raise
    return connection


def _has_journal(path: Path) -> bool:
    return any(path.with_name(path.name + end).exists() for end in ("-wal", "-journal"))


def _share(connection: sqlite3.Connection) -> None:
    """Let readers and a writer work at the same time (write-ahead log); the file stores the setting."""
    if connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
        return
    try:
        connection.execute("PRAGMA journal_mode=WAL")
    except sqlite3.OperationalError as error:
        # Another process has it open; a later one sets it.  Until then readers and writers take turns.
        if not error.sqlite_errorname.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            raise


def _bring_up(connection: Connection, place: Place, write: bool) -> None:
    with connection.begin():
        version = _version(connection, place)
    if version == LATEST:
        return
    if not write:
        if version is None:
            raise UsageError(
                refusal(
                    WHO,
                    "db",
                    place.name,
                    "holds no history",
                    "one that runs were added to",
                    "attnbench history --add RESULTS fills it from run files",
                )
            )
        raise UsageError(
            refusal(
                WHO,
                "db",
                place.name,
                f"is of schema {version}, older than this attnbench reads",
                "attnbench history --add RUN brings it up, where it may be written to",
            )
        )
    with connection.begin():
        if place.path is None:
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({LOCK})")
        if _version(connection, place) != LATEST:  # the previous holder of the lock may have migrated
            migrate(connection, STEPS)


def _version(connection: Connection, place: Place) -> str | None:
    """Return the last migration applied; None before the first.

    Raises:
        UsageError: the database belongs to another program, or its schema is newer.
        Damaged: it has tables of a history but no valid schema version.
    """
    from sqlalchemy import inspect

    tables = inspect(connection).get_table_names()
    ours = [table for table in tables if table.startswith(OURS) and table != VERSION_TABLE]
    found = (
        [str(row[0]) for row in connection.exec_driver_sql(f"SELECT version_num FROM {VERSION_TABLE}")]
        if VERSION_TABLE in tables
        else []
    )
    if not found and not ours:
        if place.path is not None and set(tables) - {VERSION_TABLE}:
            raise UsageError(
                refusal(
                    WHO,
                    "db",
                    place.name,
                    "is a database of another program",
                    "a history written by attnbench, or a new file",
                )
            )
        return None
    if len(found) != 1 or not STEP.fullmatch(found[0]) or (found[0] <= LATEST and found[0] not in steps()):
        said = f"schemas {', '.join(map(shown, found))}" if found else "no schema"
        raise Damaged(f"it has tables and names {said}")
    if found[0] > LATEST:
        raise UsageError(
            refusal(
                WHO,
                "db",
                place.name,
                f"is of schema {found[0]}, newer than this attnbench reads",
                f"at most {LATEST}",
                "upgrade attnbench",
            )
        )
    return found[0]


def steps() -> list[str]:
    """Return the names of all migrations by their files, which takes no alembic to read."""
    return sorted(path.stem[1:5] for path in (STEPS / "versions").glob("v[0-9][0-9][0-9][0-9]_*.py"))


def migrate(connection: Connection, steps: Path) -> None:
    """Apply the missing migrations within the open transaction."""
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    script: Any = ScriptDirectory(str(steps))
    now = context.get_current_revision()
    missing = list(script.iterate_revisions("heads", now or "base"))
    with Operations.context(context):
        for step in reversed(missing):
            step.module.upgrade()
        context.stamp(script, "head")
