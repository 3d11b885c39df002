"""One row over all its runs: where its time changed level, and what else changed there.

A row is a case and a backend.  Each combination of timer, GPU, cache state, regime, configuration, input and locked
clocks is a series of its own.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from attnbench.errors import UsageError, refusal
from attnbench.record import Environment
from attnbench.stats.change_points import ChangePoint, change_points
from attnbench.store.history.changes import differences
from attnbench.store.history.entry import SERIES
from attnbench.store.history.faults import Damaged
from attnbench.store.history.lines import (
    BodyLine,
    EnvironmentLine,
    PointLine,
    RowLine,
    SeriesLine,
    data_within,
    environment_of,
    fetch,
)
from attnbench.store.history.place import WHO
from attnbench.store.history.reading import Filters, some
from attnbench.text import spelled

if TYPE_CHECKING:
    from sqlalchemy import Connection

ALL = Filters()

NEAR = 2
"""Runs on either side of a change that are searched for its cause: a change is located to within a few runs."""


@dataclass(frozen=True, slots=True)
class Row:
    """A case and a backend."""

    case_id: str
    backend: str

    def __str__(self) -> str:
        return f"{self.case_id}/{self.backend}"


@dataclass(frozen=True, slots=True)
class TrendPoint:
    """One run's time of a row."""

    run_id: str
    started: str
    median_ms: float
    "if several processes measured it, the median of theirs"
    low_ms: float | None
    high_ms: float | None
    "95 % interval of the median; for several processes, the lowest and highest of theirs"
    num_samples: int | None
    processes: int
    sm_mhz: float | None
    version: str | None
    source_hash: str | None
    environment: Environment | None
    kernels: tuple[str, ...] | None
    "None if not read: they are read only next to a change"
    records: tuple[tuple[int, int], ...]
    "key of the run and place of the record, for each process"


@dataclass(frozen=True, slots=True)
class Change:
    """A change of level."""

    index: int
    "of the first point of the new level"
    before_ms: float
    after_ms: float
    differences: tuple[str, ...]
    "what else changed, as texts; empty if nothing that is recorded did"
    offset: int
    "points from the change to those differences"

    @property
    def ratio(self) -> float:
        """The time after over the time before."""
        return self.after_ms / self.before_ms


@dataclass(frozen=True, slots=True)
class Loss:
    """A run in which the row did not pass."""

    run_id: str
    started: str
    status: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class Trend:
    """One series."""

    row: Row
    workload: str
    config: str | None
    machine: str | None
    timer: str | None
    l2: str | None
    regime: str | None
    input: str | None
    lock_clocks: str | None
    points: tuple[TrendPoint, ...]
    "oldest first"
    changes: tuple[Change, ...]


def find_row(
    history: Connection, text: str | None = None, *, case: str | None = None, backend: str | None = None
) -> Row:
    """Return the one row that the arguments name.

    Args:
        history: open connection.
        text: ``CASE/BACKEND``, each or the whole a unique part; case-insensitive.
        case: unique part of the case's id.
        backend: unique part of the backend's name.

    Raises:
        UsageError: no row or several rows match.
    """
    with history.begin():
        found = fetch(history, RowLine, "SELECT DISTINCT case_id, backend FROM attnbench_series ORDER BY 1, 2", {})
    rows = [Row(row.case_id, row.backend) for row in found]
    if case is not None:
        rows = _fitting(rows, case, lambda row: row.case_id, "--case")
    if backend is not None:
        rows = _fitting(rows, backend, lambda row: row.backend, "--backend")
    if text is not None:
        rows = _by_text(rows, text)
    if len(rows) != 1:
        asked = text or " ".join(word for word in (case, backend) if word)
        if not rows:
            raise UsageError(f"{WHO}: no row is in the history; attnbench history --add RESULTS fills it")
        raise UsageError(refusal(WHO, "ROW", asked, f"fits {len(rows)} rows", f"one of {some([str(r) for r in rows])}"))
    return rows[0]


def _by_text(rows: list[Row], text: str) -> list[Row]:
    if "://" in text:  # a database given as the row; it may hold a password
        raise UsageError(f"{WHO}: ROW is a URL; CASE/BACKEND, and the URL after --db")
    left, slash, right = text.rpartition("/")
    if slash and (fits := _narrow(_narrow(rows, left, lambda row: row.case_id), right, lambda row: row.backend)):
        return fits
    return _fitting(rows, text, str, "ROW")


def _fitting(rows: list[Row], text: str, name: Any, field: str) -> list[Row]:
    fits = _narrow(rows, text, name)
    if not fits and rows:
        import difflib

        names = list(dict.fromkeys(map(name, rows)))
        near = difflib.get_close_matches(text, names, n=1, cutoff=0.3)
        todo = f"did you mean {near[0]}?" if near else ""
        raise UsageError(refusal(WHO, field, text, "fits no row in the history", f"such as {some(names)}", todo))
    return fits


def _narrow(rows: list[Row], text: str, name: Any) -> list[Row]:
    """Return the rows of exactly this name, or else those whose name contains it."""
    wanted = text.casefold()
    exact = [row for row in rows if name(row).casefold() == wanted]
    return exact or [row for row in rows if wanted in name(row).casefold()]


def trends(history: Connection, row: Row, filters: Filters = ALL) -> tuple[list[Trend], list[Loss]]:
    """Return all series of a row that have a time, longest first, and the runs in which the row did not pass."""
    where, values = filters.where()
    with history.begin():
        series = fetch(
            history,
            SeriesLine,
            "SELECT * FROM attnbench_series WHERE case_id = :case AND backend = :backend",
            {"case": row.case_id, "backend": row.backend},
        )
        asked = (
            "SELECT p.*, r.id AS run_id, r.started FROM attnbench_points p "
            f'JOIN attnbench_runs r ON r."key" = p.run WHERE p.series = :series AND {where} '
            'ORDER BY r.started, r."key", p.place'
        )
        found = [(one, fetch(history, PointLine, asked, {"series": one.key, **values})) for one in series]
        timed = [(one, rows) for one, rows in found if one.timer is not None and rows]
        environments = _environments(history, {line.environment for _, rows in timed for line in rows})
        drawn = [_trend(history, row, one, rows, environments, filters.limit) for one, rows in timed]
    drawn.sort(key=lambda trend: (-len(trend.points), str(trend.machine), str(trend.timer)))
    losses = [
        Loss(line.run_id, line.started, line.status, line.reason)
        for one, rows in found
        if one.timer is None
        for line in rows
    ]
    return drawn, sorted(losses, key=lambda loss: loss.started)[-(filters.limit or len(losses)) :]


def _trend(
    history: Connection,
    row: Row,
    series: SeriesLine,
    rows: Sequence[PointLine],
    environments: dict[int, Environment],
    limit: int | None,
) -> Trend:
    points = [_point(list(lines), environments) for _, lines in groupby(rows, key=lambda line: line.run)]
    points = points[-limit:] if limit else points
    found = change_points([point.median_ms for point in points])
    changes = tuple(_explained(history, points, one) for one in found)
    rest = {name: getattr(series, name) for name in SERIES if name not in ("case_id", "backend")}
    return Trend(row=row, **rest, points=tuple(points), changes=changes)


def _point(lines: Sequence[PointLine], environments: dict[int, Environment]) -> TrendPoint:
    first, medians = lines[0], [line.median_ms or 0.0 for line in lines]
    if min(medians) <= 0.0:
        raise Damaged(f"median_ms={min(medians)} is not a time")
    alone = len(lines) == 1
    counts = [line.num_samples for line in lines]
    clocks = [line.sm_mhz for line in lines if line.sm_mhz is not None]
    return TrendPoint(
        run_id=first.run_id,
        started=first.started,
        median_ms=statistics.median(medians),
        low_ms=first.ci_low_ms if alone else min(medians),
        high_ms=first.ci_high_ms if alone else max(medians),
        num_samples=None if None in counts else sum(count or 0 for count in counts),
        processes=len(lines),
        sm_mhz=statistics.median(clocks) if clocks else None,
        version=first.version,
        source_hash=first.source_hash,
        environment=None if first.environment is None else environments.get(first.environment),
        kernels=None,
        records=tuple((line.run, line.place) for line in lines),
    )


def _environments(history: Connection, keys: set[int | None]) -> dict[int, Environment]:
    from sqlalchemy import bindparam, text

    wanted = sorted(key for key in keys if key is not None)
    asked = text('SELECT "key", body FROM attnbench_environments WHERE "key" IN :keys').bindparams(
        bindparam("keys", expanding=True)
    )
    found: dict[int, Environment] = {}
    for at in range(0, len(wanted), 500):
        for line in fetch(history, EnvironmentLine, asked, {"keys": wanted[at : at + 500]}):
            found[line.key] = environment_of(line)
    return found


def _explained(history: Connection, points: list[TrendPoint], found: ChangePoint) -> Change:
    """Return a change with the differences at the change itself, or else at the nearest neighbours that differ."""
    offsets = sorted(range(-NEAR, NEAR + 1), key=lambda offset: (abs(offset), offset))
    for offset in offsets:
        at = found.index + offset
        if 0 < at < len(points):
            before, after = (_with_kernels(history, points[place]) for place in (at - 1, at))
            if changed := differences(before, after):
                return Change(found.index, found.before, found.after, tuple(changed), offset)
    return Change(found.index, found.before, found.after, (), 0)


def _with_kernels(history: Connection, point: TrendPoint) -> TrendPoint:
    import dataclasses

    run, place = point.records[0]
    bodies = fetch(
        history,
        BodyLine,
        "SELECT body FROM attnbench_records WHERE run = :run AND place = :place",
        {"run": run, "place": place},
    )
    kernels = data_within(bodies[0].body).get("kernels") if bodies else None
    if not isinstance(kernels, list) or not all(isinstance(name, str) for name in kernels):
        raise Damaged("a point has no record of its own")
    return dataclasses.replace(point, kernels=tuple(map(spelled, kernels)))
