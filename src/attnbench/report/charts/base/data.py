"""The data behind charts: the timed records of a run, grouped by case and by measuring conditions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from attnbench.presentation.conditions import Conditions, conditions_of
from attnbench.presentation.figures import wild_time
from attnbench.record import Record, Run
from attnbench.report.charts.base.figure import slug, unique
from attnbench.store.replicates import Tie, by_backend, case_of, combine, is_replicated, tie


@dataclass(frozen=True)
class Table:
    """The timed records of one case under one set of measuring conditions: the data of one chart."""

    case_id: str
    case: Mapping[str, Any]
    workload: str
    conditions: Conditions
    records: Sequence[Record]
    "one a backend, fastest first; those of several processes are combined"
    processes: Mapping[str, Sequence[Record]]
    "the records behind each of them, by `Record.backend`"
    replicated: bool
    folder: str
    "of its pictures; another for each way in which the case was measured"

    @cached_property
    def tied(self) -> tuple[str, ...] | None:
        """Backends that the samples do not show slower than the first; None where nobody was compared."""
        if len(self.records) < 2:
            return None
        measured = [record for members in self.processes.values() for record in members]
        found = tie(measured) if self.replicated else _tie(measured)
        return () if found is None else found[1]


class RunData:
    """One run, grouped once for all its charts."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.replicated = is_replicated(run)
        self.tables = list(self._tables())

    def by_conditions(self) -> list[list[Table]]:
        """Tables that may stand in one chart: of one workload, and measured the same way."""
        found: dict[tuple[str | None, ...], list[Table]] = {}
        for table in self.tables:
            found.setdefault((table.workload, *table.conditions.key), []).append(table)
        return list(found.values())

    def _tables(self) -> list[Table]:
        groups: dict[str, dict[tuple[str | None, ...], list[Record]]] = {}
        for record in self.run.records:
            # A time that is not known to within itself has no place on a scale; the table says so.
            if record.time is not None and record.time.median_ms and not wild_time(record.time):
                ways = groups.setdefault(case_of(record), {})
                conditions = conditions_of(self.run, [record])
                ways.setdefault((*conditions.key, conditions.gpu), []).append(record)
        taken: set[str] = set()
        return [self._table(records, taken) for ways in groups.values() for records in ways.values()]

    def _table(self, records: Sequence[Record], taken: set[str]) -> Table:
        first = records[0]
        there = combine(records) if self.replicated else list(records)
        return Table(
            case_id=first.case_id,
            case=first.case,
            workload=first.workload,
            conditions=conditions_of(self.run, records),
            records=sorted(there, key=lambda record: record.time.median_ms or 0.0 if record.time else 0.0),
            processes=by_backend(records),
            replicated=self.replicated,
            folder=unique(slug(first.case_id), taken),
        )


def _tie(records: Sequence[Record]) -> Tie | None:
    from attnbench.stats.ranking import clear_winner
    from attnbench.store.derive import by_round

    times = {record.backend: found for record in records if record.time and (found := by_round(record.time))}
    tick = max((record.time.tick_ms or 0.0 for record in records if record.time), default=0.0)
    winner = clear_winner(times, tick=tick)
    return None if winner is None or winner.is_clear else (winner.name, winner.tied)
