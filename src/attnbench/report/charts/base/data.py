"""The data behind charts: the timed records of a run, grouped by case and by measuring conditions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from attnbench.presentation.conditions import Conditions, conditions_of
from attnbench.presentation.figures import wild_time
from attnbench.record import Record, Run
from attnbench.report.charts.base.figure import slug, unique
from attnbench.store.replicates import by_backend, case_of, combine, is_replicated, tie


@dataclass(frozen=True)
class Table:
    """The timed records of one case under one set of measuring conditions: the data of one chart."""

    case_id: str
    case: Mapping[str, Any]
    workload: str
    conditions: Conditions
    records: Sequence[Record]
    "one per backend, fastest first; those of several processes are combined"
    off_scale: Sequence[Record]
    "of other backends that were timed, but whose interval is wider than the value, so that they cannot be drawn"
    processes: Mapping[str, Sequence[Record]]
    "the records combined in each of them, by `Record.backend`"
    replicated: bool
    folder: str
    "of its image files; different for each set of measuring conditions"

    @cached_property
    def standing(self) -> list[Record]:
        """All timed records, fastest first, including those that cannot be drawn, as one of them may be the fastest."""
        return sorted([*self.records, *self.off_scale], key=_median)

    @cached_property
    def tied(self) -> tuple[str, ...] | None:
        """Backends that the samples do not show to be slower than the fastest; None if nothing was compared."""
        if len(self.standing) < 2:
            return None
        measured = [record for members in self.processes.values() for record in members]
        found = tie(measured, replicated=self.replicated)
        return () if found is None else found[1]


class RunData:
    """One run, grouped once for all its charts."""

    def __init__(self, run: Run) -> None:
        self.run = dataclasses.replace(run, records=tuple(map(_with_plain_axes, run.records)))
        self.replicated = is_replicated(run)
        self.tables = list(self._tables())

    @cached_property
    def without_point(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Workload and case of all without a point: failed, or with an interval wider than the value."""
        drawn = {table.case_id for table in self.tables}
        return [(one.workload, one.case) for one in self.run.records if one.case_id not in drawn]

    def by_conditions(self) -> list[list[Table]]:
        """Tables that may be in one chart: of one workload, and measured under the same conditions."""
        found: dict[tuple[str | None, ...], list[Table]] = {}
        for table in self.tables:
            found.setdefault((table.workload, *table.conditions.key), []).append(table)
        return list(found.values())

    def _tables(self) -> list[Table]:
        groups: dict[str, dict[tuple[str | None, ...], list[Record]]] = {}
        for record in self.run.records:
            if record.time is not None and record.time.median_ms:
                ways = groups.setdefault(case_of(record), {})
                conditions = conditions_of(self.run, [record])
                ways.setdefault((*conditions.key, conditions.gpu), []).append(record)
        taken: set[str] = set()
        return [
            table for ways in groups.values() for records in ways.values() if (table := self._table(records, taken))
        ]

    def _table(self, timed: Sequence[Record], taken: set[str]) -> Table | None:
        # A time whose interval is wider than the value is not drawn; the table says so.
        records = [record for record in timed if record.time and not wild_time(record.time)]
        if not records:
            return None
        first, placed = records[0], {record.backend for record in records}
        others = [record for record in timed if record.backend not in placed]
        return Table(
            case_id=first.case_id,
            case=first.case,
            workload=first.workload,
            conditions=conditions_of(self.run, records),
            records=sorted(combine(records) if self.replicated else records, key=_median),
            off_scale=combine(others) if self.replicated else others,
            processes=by_backend([*records, *others]),
            replicated=self.replicated,
            folder=unique(slug(first.case_id), taken),
        )


def _with_plain_axes(record: Record) -> Record:
    """The record with a text for each axis that holds a list, which is then a place on an axis like any other."""
    texts = {name: ", ".join(map(str, value)) for name, value in record.case.items() if isinstance(value, list | tuple)}
    return dataclasses.replace(record, case={**record.case, **texts}) if texts else record


def _median(record: Record) -> float:
    return record.time.median_ms or 0.0 if record.time else 0.0
