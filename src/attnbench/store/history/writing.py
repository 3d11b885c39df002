"""Add runs to the history, one transaction each; a repeated run is skipped, a grown one replaces its older state."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attnbench.errors import UsageError, refusal
from attnbench.record import Run
from attnbench.store.history.entry import SERIES, Entry, Identity, entry_of
from attnbench.store.history.faults import Damaged
from attnbench.store.history.lines import BodyLine, HeadLine, KnownLine, data_within, fetch
from attnbench.store.history.opening import open_history
from attnbench.store.history.place import VARIABLE, WHO, find_place, is_installed

if TYPE_CHECKING:
    from sqlalchemy import Connection

Outcome = Literal["added", "grown", "unchanged", "older"]
"""New; replaced the beginning of the same run; present already; present already with more records."""

SHORT_PATIENCE_S = 5.0
"""At the end of a run: the file is written, and `attnbench history --add` can add it later."""

CHUNK = 500
"""Values of one IN (...): databases limit their number."""


def keep(path: Path, *, make: bool = True) -> str | None:
    """Add the finished run file at `path` to the history beside it, or to the one the environment names.

    Never fails: the run file is the source of truth, and it is written.

    Args:
        path: path of the run file.
        make: create a history beside it if there is none and the environment names none.

    Returns:
        The failure in one line; None if the run was added or SQLAlchemy is not installed.
    """
    if not (is_installed("sqlalchemy") and is_installed("alembic")):
        return None
    from attnbench.store.runfile import read

    todo = f"to add it: attnbench history --add {path}"
    try:
        place = find_place(None, path.parent)
        named = bool(os.environ.get(VARIABLE, "").strip())
        if place is not None and (make or named or (place.path is not None and place.path.is_file())):
            with open_history(place, write=True, patience_s=SHORT_PATIENCE_S) as history:
                add(history, read(path))
    except Exception as error:  # catches everything: the run is measured and written, so it must not fail
        why = " ".join(str(error).split()) or type(error).__name__
        return f"the run is in its file, but not in the history ({why}); {todo}"
    return None


def add(history: Connection, run: Run) -> Outcome:
    """Add a run to the history.

    Raises:
        UsageError: the history has another run of this id.
    """
    return add_entry(history, entry_of(run))


def add_entry(history: Connection, entry: Entry) -> Outcome:
    """Add the entry that `entry_of` returned, whole or not at all.

    Raises:
        UsageError: the history has another run of this id.
    """
    with history.begin():
        if history.dialect.name == "postgresql":  # only writers of the same run wait for each other
            number = int.from_bytes(hashlib.sha256(entry.run["id"].encode()).digest()[:8], "big", signed=True)
            _do(history, "SELECT pg_advisory_xact_lock(:number)", {"number": number})
        there = fetch(
            history, KnownLine, 'SELECT "key", digest FROM attnbench_runs WHERE id = :id', {"id": entry.run["id"]}
        )
        for old in there:
            if old.digest == entry.run["digest"]:
                return "unchanged"
            if _compared(history, old.key, entry) == "older":
                return "older"
            for table in ("points", "records"):
                _do(history, f"DELETE FROM attnbench_{table} WHERE run = :key", {"key": old.key})
            _do(history, 'DELETE FROM attnbench_runs WHERE "key" = :key', {"key": old.key})
        _insert(history, entry)
    return "grown" if there else "added"


def _compared(history: Connection, key: int, entry: Entry) -> Literal["grown", "older"]:
    """Return which of two runs of one id continues the other.

    Raises:
        UsageError: neither does.
        Damaged: several runs have that key.
    """
    heads = fetch(
        history, HeadLine, 'SELECT "key", head, num_records FROM attnbench_runs WHERE "key" = :key', {"key": key}
    )
    if len(heads) != 1:  # the table was made anew, without its primary key
        raise Damaged(f"{len(heads)} runs have the key {key}")
    bodies = fetch(history, BodyLine, "SELECT body FROM attnbench_records WHERE run = :key", {"key": key})
    old_head, new_head = data_within(heads[0].head), data_within(entry.run["head"])
    old, new = {_measured(line.body) for line in bodies}, {_measured(body) for body in entry.bodies}
    same = all(old_head.get(name) == new_head[name] for name in ("suite", "command", "started"))
    if same and old <= new:
        return "grown"
    if same and new < old:
        return "older"
    what = f"{len(old - new)} rows that this one lacks" if same else f"started {old_head.get('started')}"
    raise UsageError(
        refusal(
            WHO,
            "run",
            entry.run["id"],
            f"is the id of another run there, with {what}",
            "a run of its own id; nothing was changed",
        )
    )


def _measured(body: bytes) -> tuple[str, str, str]:
    row = data_within(body)
    return str(row.get("group")), str(row.get("backend")), str(row.get("replicate"))


def _insert(history: Connection, entry: Entry) -> None:
    names = tuple(entry.run)
    values = ", ".join(f":{name}" for name in names)
    key = _do(
        history, f'INSERT INTO attnbench_runs ({", ".join(names)}) VALUES ({values}) RETURNING "key"', dict(entry.run)
    ).scalar_one()
    _do(
        history,
        "INSERT INTO attnbench_records (run, place, body) VALUES (:run, :place, :body)",
        [{"run": key, "place": place, "body": body} for place, body in enumerate(entry.bodies)],
    )
    environments = _keys(
        history,
        "environments",
        {_digest(text): {"body": text} for text in {point.environment for point in entry.points} if text is not None},
    )
    series = _keys(
        history,
        "series",
        {
            _digest(identity): dict(zip(SERIES, identity, strict=True))
            for identity in {point.series for point in entry.points}
        },
    )
    rows = [
        {
            "series": series[_digest(point.series)],
            "run": key,
            "place": point.place,
            "environment": environments[_digest(point.environment)] if point.environment is not None else None,
            **point.values,
        }
        for point in entry.points
    ]
    if rows:
        _do(
            history,
            f"INSERT INTO attnbench_points ({', '.join(rows[0])}) VALUES ({', '.join(f':{name}' for name in rows[0])})",
            rows,
        )


def _keys(history: Connection, table: str, wanted: dict[str, dict[str, Any]]) -> dict[str, int]:
    """Return keys by digest; missing rows are inserted."""
    # All writers use one order, or two of them could deadlock.
    digests = sorted(wanted)
    found = _find(history, table, digests)
    missing = [{"digest": digest, **wanted[digest]} for digest in digests if digest not in found]
    if missing:
        names = ", ".join(missing[0])
        values = ", ".join(f":{name}" for name in missing[0])
        _do(
            history,
            f"INSERT INTO attnbench_{table} ({names}) VALUES ({values}) ON CONFLICT (digest) DO NOTHING",
            missing,
        )
        found |= _find(history, table, [row["digest"] for row in missing])
    return found


def _find(history: Connection, table: str, digests: Sequence[str]) -> dict[str, int]:
    from sqlalchemy import bindparam, text

    asked = text(f'SELECT digest, "key" FROM attnbench_{table} WHERE digest IN :digests').bindparams(
        bindparam("digests", expanding=True)
    )
    parts: Iterable[Sequence[str]] = (digests[at : at + CHUNK] for at in range(0, len(digests), CHUNK))
    return {row.digest: row.key for part in parts for row in fetch(history, KnownLine, asked, {"digests": part})}


def _digest(identity: Identity | str) -> str:
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()


def _do(history: Connection, statement: str, values: Any) -> Any:
    from sqlalchemy import text

    return history.execute(text(statement), values) if values else None
