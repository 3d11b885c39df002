"""The comparison of two runs as the page shows it: summary, changed rows, unchanged rows, notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attnbench.presentation.block import Column
from attnbench.presentation.figures import half_interval, measured
from attnbench.report.compared import FIRST, Compared
from attnbench.report.diff import LEGEND, Cells, listed, remarks, shift_line, summary, table_of
from attnbench.report.html.content import aligned
from attnbench.verdict.change import Change

COLUMN_TITLES = {"verdict": "verdict"}


@dataclass(frozen=True, slots=True)
class Rows:
    """A table of changes: its columns, and for each row the anchor of its case and its texts."""

    columns: Sequence[Column]
    lines: Sequence[tuple[str, Sequence[tuple[Column, str]]]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Run A compared with a later one."""

    anchor: str
    title: str
    names: Sequence[tuple[str, str]]
    "letter and description of both runs"
    summary: str
    words: Sequence[str]
    notes: Sequence[str]
    changed: Rows | None
    same: Rows | None
    figures: Sequence[int]
    "indices in the list of figures"
    legend: str = LEGEND


def comparison(compared: Compared, anchors: Mapping[str, str], figures: Sequence[int]) -> Comparison:
    """Return one comparison of a page.

    Args:
        compared: the two runs, with verdicts.
        anchors: of the cases of the first run, by their id.
        figures: indices of its figures.
    """
    sides = ((FIRST, compared.first, " (dashed lines)" if figures else ""), (compared.letter, compared.run, ""))
    described = [
        (one, f"{run.suite}, run {run.id} of {run.started.replace('T', ' ').replace('Z', ' UTC')}{lines}")
        for one, run, lines in sides
    ]
    found = compared.found
    loud = [one for one in found.changes if one.verdict != "same"] if found else []
    same = [one for one in found.changes if one.verdict == "same"] if found else []
    words = [] if found is None else [*([shift_line(found.shift)] if found.shift else []), *found.machines]
    lost = [] if found is None else [f"{label}: {text}" for label, items in listed(found) for text in items]
    return Comparison(
        anchor=f"compared-{compared.letter.replace(' ', '-')}",
        title=f"{FIRST} and {compared.letter}",
        names=described,
        summary=summary(found) if found else f"no ratios: {compared.refusal}",
        words=words,
        notes=[*lost, *(remarks(loud, found) if found else ())],
        changed=_rows(loud, compared.letter, anchors),
        same=_rows(same, compared.letter, anchors),
        figures=figures,
    )


def _rows(changes: Sequence[Change], letter: str, anchors: Mapping[str, str]) -> Rows | None:
    if not changes:
        return None
    columns, cells = table_of(changes)
    ratios = [{**line, "ratio": _ratio(change)} for line, change in zip(cells, changes, strict=True)]
    place = next(index for index, column in enumerate(columns) if column.key == "b") + 1
    columns = [*columns[:place], Column("ratio", f"{letter} / {FIRST}", 0), *columns[place:]]
    titled = [Column(one.key, _title(one, letter), one.rank, one.number) for one in columns]
    texts = [_column(one, ratios) for one in titled]
    lines = [
        (anchors.get(change.a.case_id, ""), list(zip(titled, row, strict=True)))
        for change, row in zip(changes, zip(*texts, strict=True), strict=True)
    ]
    return Rows(titled, lines)


def _ratio(change: Change) -> str:
    """Format the ratio of the times as measured, with the digits of the change after corrections."""
    half = half_interval(change.change, change.low, change.high)
    return f"{measured(change.b_ms / change.a_ms, half)}x" if change.a_ms else ""


def _title(column: Column, letter: str) -> str:
    if column.key == "b":
        return column.title.replace("B ", f"{letter} ", 1)
    return column.title or COLUMN_TITLES.get(column.key, column.key)


def _column(column: Column, cells: Sequence[Cells]) -> list[str]:
    texts = [line.get(column.key, "") for line in cells]
    return aligned(texts) if column.number else texts
