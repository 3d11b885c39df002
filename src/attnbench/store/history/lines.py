"""Rows of the tables, checked when read.

SQLite accepts any value in any column, and a damaged page may hold anything: a value is accepted only if it has the
type of its field, and every query is read through this module.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

from attnbench.errors import RunFileError
from attnbench.record import Environment, from_dict
from attnbench.store.history.entry import unpack
from attnbench.store.history.faults import Damaged
from attnbench.text import Spelled, spelled

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.sql import Executable

LineT = TypeVar("LineT")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLine(Spelled):
    """A run without its text."""

    id: str
    started: str
    suite: str
    machine: str | None
    num_records: int
    outcomes: str


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadLine:
    """Key and text of a run."""

    key: int
    head: bytes
    num_records: int


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownLine:
    """Key and digest of a run, a series or an environment."""

    key: int
    digest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NameLine:
    """Id of a run."""

    id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class BodyLine:
    """A record's line in its run file, packed."""

    body: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class RowLine(Spelled):
    """A case and a backend."""

    case_id: str
    backend: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SeriesLine(Spelled):
    """A row and its conditions."""

    key: int
    workload: str
    case_id: str
    backend: str
    config: str | None
    machine: str | None
    timer: str | None
    l2: str | None
    regime: str | None
    input: str | None
    lock_clocks: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PointLine(Spelled):
    """A record's time in a series, or its outcome, and its run."""

    run: int
    place: int
    run_id: str
    started: str
    environment: int | None
    status: str
    reason: str | None
    median_ms: float | None
    ci_low_ms: float | None
    ci_high_ms: float | None
    sm_mhz: float | None
    num_samples: int | None
    version: str | None
    source_hash: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentLine:
    """An environment of points, as JSON."""

    key: int
    body: str


def fetch(history: Connection, kind: type[LineT], statement: str | Executable, values: Mapping[str, Any]
          ) -> list[LineT]:  # fmt: skip
    """Return the rows of a query.

    Args:
        history: open connection, in a transaction.
        kind: class of a row; other columns of the result are ignored.
        statement: SQL, or a statement of SQLAlchemy.
        values: values of its parameters; a text is looked up as it is stored, `spelled`.

    Raises:
        Damaged: a value has another type than its field; the message names it.
    """
    from sqlalchemy import text

    asked = text(statement) if isinstance(statement, str) else statement
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]  # `kind` is a dataclass
    found = []
    kept = {name: spelled(value) if isinstance(value, str) else value for name, value in values.items()}
    for row in history.execute(asked, kept).mappings():
        line = {name: row[name] for name in names if name in row}
        for name, value in line.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise Damaged(f"{name}={value} is not a number")
        try:
            found.append(from_dict(kind, line, "column"))
        except RunFileError as error:
            raise Damaged(str(error)) from None
    return found


def outcomes_of(line: RunLine) -> dict[str, int]:
    """Return the number of a run's records by outcome.

    Raises:
        Damaged: the column does not hold such counts.
    """
    counts = _parsed(line.outcomes, "outcomes")
    if not isinstance(counts, dict) or not all(type(count) is int for count in counts.values()):
        raise Damaged("outcomes are no counts")
    return counts


def environment_of(line: EnvironmentLine) -> Environment:
    """Return the environment in which points were measured.

    Raises:
        Damaged: the column does not hold an environment.
    """
    try:
        return from_dict(Environment, _parsed(line.body, "environment"), "environment")
    except RunFileError as error:
        raise Damaged(str(error)) from None


def text_within(packed: bytes) -> str:
    """Return the text that `entry.pack` compressed.

    Raises:
        Damaged: the bytes do not come from `entry.pack`.
    """
    try:
        return unpack(packed)
    except ValueError as error:
        raise Damaged(str(error)) from None


def data_within(packed: bytes) -> dict[str, Any]:
    """Return the JSON object in such a text.

    Raises:
        Damaged: the text is not a JSON object.
    """
    data = _parsed(text_within(packed), "text")
    if not isinstance(data, dict):
        raise Damaged("a line is no object")
    return data


def _parsed(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise Damaged(f"its {what} is not JSON") from None
