"""The matrix on a terminal: backends side by side; one below another where only that fits; else in several parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from attnbench.presentation.block import Lost
from attnbench.presentation.matrix import BEST, SAME, Cell, Matrix, Summary
from attnbench.report.terminal import Terminal, marked

if TYPE_CHECKING:
    from rich.table import Table

STYLES = {BEST: "bold", SAME: "bold"}
GAP = 2


def print_summary(found: Summary, terminal: Terminal, *, notes: bool = False) -> None:
    """Print matrices, reasons for gaps and the sentence.

    Args:
        found: of the run.
        terminal: output.
        notes: also print notes on all cases together, which are not printed elsewhere.
    """
    for index, matrix in enumerate(found.matrices):
        if index:
            terminal.gap()
        print_matrix(matrix, terminal)
    print_lost(found.lost, terminal)
    for note in found.notes if notes else ():
        terminal.item("note", note, style="yellow")
    for sentence in found.reading if notes else ():
        terminal.item("reading", sentence, style="cyan")
    print_sentences(found, terminal)


def print_sentences(found: Summary, terminal: Terminal) -> None:
    """Print which backend is fastest, and other conclusions from all rows."""
    for sentence in filter(None, (found.sentence, *found.results)):
        terminal.item("result", sentence, style="bold")


def print_matrix(matrix: Matrix, terminal: Terminal) -> None:
    """Print one matrix: a column for each backend, or a row where columns do not fit, else in as many parts as needed."""
    terminal.title(matrix.title, " · ".join(matrix.conditions.words()) if matrix.conditions else "")
    texts = {name: _texts([row.cells.get(name) for row in matrix.rows]) for name in matrix.backends}
    leading = [(title, [*map(terminal.words, column)]) for title, column in matrix.leading]
    first = sum(max(map(len, [title, *column])) + GAP for title, column in leading) - GAP
    parts = [*_parts(matrix.backends, texts, terminal.width - first)]
    if len(parts) > 1 and (turned := _turned(matrix, terminal)):
        terminal.print(turned)
    else:
        for part in parts:
            terminal.print(_table(matrix, part, texts, terminal))
    if matrix.legend:
        terminal.line(", ".join(f"{mark} {words}" for mark, words in matrix.legend.items()), style="dim")


def print_lost(lost: Iterable[Lost], terminal: Terminal) -> None:
    """Print the backends without a time, with reasons."""
    rows = [(item.status.value, item.backend, f"{item.reason} ({item.where})" if item.where else item.reason)
            for item in lost]  # fmt: skip
    if rows:
        terminal.losses(rows)


def _parts(backends: Sequence[str], texts: dict[str, list[str]], width: int) -> Iterator[list[str]]:
    """Split backends into groups that fit side by side, at least one per group."""
    part: list[str] = []
    used = 0
    for name in backends:
        wide = max(map(len, [name, *texts[name]])) + GAP
        if part and used + wide > width:
            yield part
            part, used = [], 0
        part.append(name)
        used += wide
    if part:
        yield part


def _turned(matrix: Matrix, terminal: Terminal) -> Table | None:
    """A row for each backend and a column for each case; None if that is too wide, or rows name their GPU."""
    columns = [_texts([row.cells.get(name) for name in matrix.backends]) for row in matrix.rows]
    widths = [
        max(map(len, [terminal.words(row.name), *column])) for row, column in zip(matrix.rows, columns, strict=True)
    ]
    names = max(len(terminal.words(name)) for name in matrix.backends)
    if any(row.gpu for row in matrix.rows) or names + sum(width + GAP for width in widths) > terminal.width:
        return None
    table = terminal.table()
    backends = terminal.column(table, "backend", matrix.backends, number=False)
    cells = [
        terminal.column(table, row.name, column, number=True) for row, column in zip(matrix.rows, columns, strict=True)
    ]
    for index, name in enumerate(matrix.backends):
        styled = (
            terminal.text(column[index], _style(row.cells.get(name)))
            for row, column in zip(matrix.rows, cells, strict=True)
        )
        table.add_row(terminal.text(backends[index]), *styled)
    return table


def _table(matrix: Matrix, part: Sequence[str], texts: dict[str, list[str]], terminal: Terminal) -> Table:
    table = terminal.table()
    leading = [terminal.column(table, title, column, number=False) for title, column in matrix.leading]
    cells = [terminal.column(table, name, texts[name], number=True) for name in part]
    for index, row in enumerate(matrix.rows):
        styled = (
            terminal.text(column[index], _style(row.cells.get(name))) for name, column in zip(part, cells, strict=True)
        )
        table.add_row(*(terminal.text(column[index]) for column in leading), *styled)
    return table


def _texts(cells: Sequence[Cell | None]) -> list[str]:
    """Return the texts of a column: numbers with their marks, and statuses."""
    numbers = [cell.text if cell is not None and cell.value is not None else "" for cell in cells]
    marks, hosts = ([getattr(cell, name, "") for cell in cells] for name in ("mark", "host"))
    found = marked(numbers, marks, hosts=hosts)
    return [number or (cell.text if cell is not None else "") for number, cell in zip(found, cells, strict=True)]


def _style(cell: Cell | None) -> str:
    if cell is None or cell.mark in STYLES:
        return STYLES.get(cell.mark, "") if cell else ""
    return "dim" if cell.is_gap else ""
