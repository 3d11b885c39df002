"""The table of all rows of all runs, as JSON for the page's script, which sorts and filters it; one unit of time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnbench.presentation import figures
from attnbench.presentation.block import Block, Line, backend_name
from attnbench.presentation.columns import baselines, columns_for, line_of
from attnbench.record import Record, Status
from attnbench.report.charts.base.panels import named
from attnbench.report.html.content import Section, aligned
from attnbench.store.replicates import case_of

MOST_CHOICES = 40
"Most values of a column that are offered as a list; more are filtered by text."
CONDITIONS = ("machine", "timer", "L2", "regime")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table, before the columns are known."""

    record: Record
    section: Section
    anchor: str
    conditions: Mapping[str, str]
    line: Line | None


def listing(sections: Sequence[Section]) -> dict[str, Any]:
    """Return columns, and rows of as many texts, as plain JSON data.

    Each column has ``title``, ``number`` (right-aligned, sorted by value), ``choice`` (few values: filtered by
    a list) and ``link`` or ``copy`` if its cells are more than text.
    """
    rows = [row for section in sections for row in _rows(section)]
    timed = [row.line for row in rows if row.line]
    unit = figures.unit_for(ms for line in timed if (ms := figures.typical_ms(line.record.time)) is not None)
    bases = baselines(line.record for line in timed)
    drawn = [line_of(row.line.record, unit, bases, False, row.line.processes) if row.line else None for row in rows]
    axes = list(_axes(rows))
    case = (_column("case", link=True), [row.record.case_id for row in rows])
    columns: list[tuple[dict[str, Any], list[str]]] = [
        (_column("run", choice=True), [row.section.name for row in rows] if len(sections) > 1 else []),
        (_column("backend", choice=True), [backend_name(row.record) for row in rows]),
        *(axes or [case]),
        (_column("status", choice=True), _unless_all([row.record.status.value for row in rows], Status.PASSED.value)),
        *(
            (_column(name, choice=True), _unless_one([row.conditions.get(name, "") for row in rows]))
            for name in CONDITIONS
        ),
    ]
    for item in columns_for(unit, [line for line in drawn if line]):
        if item.key != "backend":
            texts = [line.cells.get(item.key, "") if line else "" for line in drawn]
            choice = item.key == "verdict"
            columns.append(
                (
                    _column(item.title or item.key, number=item.number, choice=choice),
                    aligned(texts) if item.number else texts,
                )
            )
    columns += [
        (_column("reason"), [_reason(row.record) for row in rows]),
        *([case] if axes else []),  # other columns already identify the case, so its link can come last
        (_column("rerun", copy=True), [row.record.repro or "" for row in rows]),
    ]
    said = [(column, texts) for column, texts in columns if any(texts)]
    for column, texts in said:
        column["choice"] = column.get("choice", False) and 1 < len({text for text in texts if text}) <= MOST_CHOICES
    cells = zip(*(texts for _, texts in said), strict=True)
    return {"columns": [column for column, _ in said], "rows": list(map(list, cells)),
            "cases": [row.anchor for row in rows]}  # fmt: skip


def dumps(data: Any) -> str:
    """Return JSON for a script element, escaped so that no text can end the element or start a comment."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def _column(title: str, **kind: bool) -> dict[str, Any]:
    return {"title": title, **kind}


def _rows(section: Section) -> Iterable[Row]:
    """Yield the main lines of a run's cases, each case followed by its losses."""
    untimed: dict[str, dict[tuple[str, ...], Record]] = {}
    for record in section.run.records:
        if record.time is None:
            key = (backend_name(record), record.status.value, record.reason or "")
            untimed.setdefault(record.case_id, {}).setdefault((case_of(record), *key), record)
    for case in section.cases:
        for block in case.blocks:
            if _is_headline(block):
                yield from (Row(line.record, section, case.anchor, _conditions(block), line) for line in block.lines)
        for record in untimed.pop(case.title, {}).values():
            yield Row(record, section, case.anchor, {}, None)
    for rest in untimed.values():
        yield from (Row(record, section, "", {}, None) for record in rest.values())


def _is_headline(block: Block) -> bool:
    """Return whether a table contains the cases' own times, not those of timers or phases."""
    keys = {column.key for column in block.columns}
    return not keys.isdisjoint(("median", "mean")) and "phase" not in keys


def _conditions(block: Block) -> dict[str, str]:
    found = block.conditions
    values = (found.device, found.timer, found.l2, found.regime) if found else ()
    return {name: value or "" for name, value in zip(CONDITIONS, values, strict=False)}


def _axes(rows: Sequence[Row]) -> Iterable[tuple[dict[str, Any], list[str]]]:
    """Yield the fields that distinguish the cases."""
    for name in named([row.record.case for row in rows]):
        values = [row.record.case.get(name) for row in rows]
        kinds = {type(value) for value in values} - {type(None)}
        yield _column(name.replace("_", " "), number=kinds <= {int, float}, choice=True), list(map(_text, values))


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(_text, value)) if isinstance(value, list | tuple) else str(value)


def _reason(record: Record) -> str:
    return " ".join((record.reason or "").split()).removeprefix(f"{record.backend}: ")


def _unless_all(texts: list[str], usual: str) -> list[str]:
    return texts if set(texts) - {usual} else []


def _unless_one(texts: list[str]) -> list[str]:
    return texts if len({text for text in texts if text}) > 1 else []
