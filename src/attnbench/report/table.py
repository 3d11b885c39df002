"""What the terminal shows after a run: a table a case, what was lost, and the notes that are true."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from attnbench.presentation.block import Block, Column, Line, Lost
from attnbench.presentation.blocks import arrange
from attnbench.record import Run
from attnbench.report.page import Paper, decimal_aligned
from attnbench.store.environments import machine_words

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

VERDICTS = {"faster": "green", "slower": "red", "same": "", "unclear": "yellow"}
GAP = 2


def render_run(run: Run, console: Console) -> None:
    """Print the tables of a run: a block a case, or one table where there are too many cases.

    Args:
        run: with its statistics derived (`store.derive`, `store.runfile.read`).
        console: colours and width are its own; piped output carries no codes.
    """
    paper = Paper(console)
    page = arrange(run)
    _heading(run, paper)
    for block in page.blocks:
        paper.gap()
        _block(block, paper)
    if page.lost:
        paper.gap()
        _lost(page.lost, paper)


def _heading(run: Run, paper: Paper) -> None:
    for environment in run.environments:
        paper.line(" · ".join(machine_words(environment)), style="dim")


def _block(block: Block, paper: Paper) -> None:
    words = " · ".join(block.conditions.words()) if block.conditions else ""
    paper.title(block.title, words)
    if block.lines:
        paper.print(_table(block, paper))
    if block.lost:
        _lost(block.lost, paper)
    for note in block.notes:
        paper.item("note", note, style="yellow")
    for sentence in block.reading:
        paper.item("reading", sentence, style="cyan")


def _table(block: Block, paper: Paper) -> Table:
    texts = {column.key: [*map(paper.words, _texts(column, block.lines))] for column in block.columns}
    columns = fitting(block.columns, texts, paper.width)
    table = paper.table()
    for column in columns:
        table.add_column(paper.text(column.title), justify="right" if column.number else "left", overflow="fold")
    previous = None
    for index, line in enumerate(block.lines):
        cells = [paper.text(texts[column.key][index], _style(column, line)) for column in columns]
        if columns[0].key == "case":
            # A case is named once, above its own lines.
            cells[0] = paper.text("" if line.cells["case"] == previous else line.cells["case"], "bold")
            previous = line.cells["case"]
        table.add_row(*cells)
    return table


def _texts(column: Column, lines: Sequence[Line]) -> list[str]:
    texts = [line.cells.get(column.key, "") for line in lines]
    return decimal_aligned(texts) if column.number else texts


def fitting(columns: Sequence[Column], texts: dict[str, list[str]], width: int) -> list[Column]:
    """The columns that the page has room for; those of the highest rank go first."""
    widths = {column.key: max(map(len, [column.title, *texts[column.key]])) for column in columns}
    kept = list(columns)
    while len(kept) > 1 and sum(widths[column.key] + GAP for column in kept) - GAP > width:
        last = max(kept, key=lambda column: column.rank)
        if last.rank == 0:
            break
        kept.remove(last)
    return kept


def _style(column: Column, line: Line) -> str:
    if column.key in ("verdict", "speedup") and line.record.speedup:
        return VERDICTS[line.record.speedup.verdict] if line.cells.get("verdict") else ""
    if column.key in ("margin", "spread", "speedup_margin", "processes", "samples", "error", "budget"):
        return "dim"
    return "bold" if line.fastest and column.key in ("backend", "median") else ""


def _lost(lost: Iterable[Lost], paper: Paper) -> None:
    paper.losses((item.status.value, item.backend, f"{item.reason} ({item.where})" if item.where else item.reason)
                 for item in lost)  # fmt: skip
