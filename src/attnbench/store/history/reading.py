"""List the runs of the history, and restore their files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from attnbench.errors import UsageError, refusal
from attnbench.store.history.entry import sortable
from attnbench.store.history.faults import Damaged
from attnbench.store.history.lines import BodyLine, HeadLine, NameLine, RunLine, fetch, outcomes_of, text_within
from attnbench.store.history.place import WHO

if TYPE_CHECKING:
    from sqlalchemy import Connection

BEGINNING = re.compile(r"[0-9a-fA-F]{1,16}")
"Beginning of an id of a run; no other text is queried."
MOST_NAMED = 6
"Candidates named in a one-line message."


@dataclass(frozen=True, slots=True)
class Filters:
    """The runs to select."""

    suite: str | None = None
    since: str | None = None
    "as `sortable` writes it"
    limit: int | None = None
    "this many, the newest"

    def where(self) -> tuple[str, dict[str, Any]]:
        """Condition on a table of runs called r, and its parameters."""
        conditions, values = ["1 = 1"], {}
        if self.suite is not None:
            conditions.append("r.suite = :suite")
            values["suite"] = self.suite
        if self.since is not None:
            conditions.append("r.started >= :since")
            values["since"] = self.since
        return " AND ".join(conditions), values


@dataclass(frozen=True, slots=True)
class KeptRun:
    """One row of the list of runs."""

    id: str
    started: str
    suite: str
    machine: str | None
    rows: int
    outcomes: Mapping[str, int]


def since(text: str, now: datetime | None = None) -> str:
    """Return the time that --since means: a date or time (ISO 8601, UTC), or days back as ``30d``.

    Raises:
        UsageError: the text is neither.
    """
    if match := re.fullmatch(r"(\d{1,5})d", text):
        return ((now or datetime.now(UTC)) - timedelta(days=int(match[1]))).strftime("%Y-%m-%dT%H:%M:%SZ")
    try:
        datetime.fromisoformat(text)
    except ValueError:
        accepted = "a date such as 2026-11-20, or days back such as 30d"
        raise UsageError(refusal(WHO, "--since", text, "is no time", accepted)) from None
    return sortable(text)


def list_runs(history: Connection, filters: Filters = Filters()) -> list[KeptRun]:
    """Return runs, newest first."""
    where, values = filters.where()
    limit = "" if filters.limit is None else f" LIMIT {int(filters.limit)}"
    with history.begin():
        rows = fetch(
            history,
            RunLine,
            (
                "SELECT id, started, suite, machine, num_records, outcomes FROM attnbench_runs r "
                f'WHERE {where} ORDER BY started DESC, "key" DESC{limit}'
            ),
            values,
        )
    return [KeptRun(row.id, row.started, row.suite, row.machine, row.num_records, outcomes_of(row)) for row in rows]


def ids(history: Connection, start: str) -> list[str]:
    """Return the id of the run named `start`, or else all ids that begin with it."""
    if not BEGINNING.fullmatch(start):
        return []
    with history.begin():
        lines = fetch(
            history, NameLine, "SELECT id FROM attnbench_runs WHERE id LIKE :start ORDER BY id", {"start": f"{start}%"}
        )
    found = [line.id for line in lines]
    return [start] if start in found else found


def text_of(history: Connection, run_id: str) -> tuple[str, str]:
    """Return the text of a run's file.

    Args:
        history: open connection.
        run_id: its id, or a unique beginning of it.

    Returns:
        The full id and the text.

    Raises:
        UsageError: no run has this id, or several begin with it.
    """
    from attnbench.store.runfile import document

    chosen = ids(history, run_id)
    if len(chosen) > 1:
        raise UsageError(refusal(WHO, "RUN", run_id, f"begins {len(chosen)} ids", f"one of {some(chosen)}"))
    if not chosen:
        raise UsageError(refusal(WHO, "RUN", run_id, "is not in the history", "an id that `attnbench history` lists"))
    with history.begin():
        rows = fetch(
            history, HeadLine, 'SELECT "key", head, num_records FROM attnbench_runs WHERE id = :id', {"id": chosen[0]}
        )
        if len(rows) != 1:
            raise Damaged(f"it says {len(rows)} runs have one id")
        bodies = fetch(
            history,
            BodyLine,
            "SELECT body FROM attnbench_records WHERE run = :key ORDER BY place",
            {"key": rows[0].key},
        )
    try:
        head, lines = text_within(rows[0].head), [text_within(line.body) for line in bodies]
    except Damaged:
        lines, head = [], ""
    if not head or len(lines) != rows[0].num_records:
        raise UsageError(refusal(WHO, "RUN", chosen[0], "is damaged in the history", "its run file"))
    return chosen[0], document(head, lines)


def some(names: list[str]) -> str:
    """Return names for a one-line message."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
