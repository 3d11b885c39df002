"""The result of a load on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnbench.presentation.block import Column
from attnbench.presentation.load import ASKED, notes, sentence, tables, title_of
from attnbench.report.table import beside_each_other
from attnbench.report.terminal import Terminal, decimal_aligned
from attnbench.store.load_file import LoadRun

if TYPE_CHECKING:
    from rich.console import Console


def render_load(run: LoadRun, console: Console) -> None:
    """Print the tables and notes; a table too wide for the terminal is split."""
    terminal = Terminal(console)
    terminal.title(title_of(run), "")
    for found in tables(run):
        terminal.gap()
        terminal.line(found.title, "dim")
        columns = [Column(name, name, 0, number=place > 0) for place, name in enumerate(found.heading)]
        texts = {
            column.key: decimal_aligned(cells) if column.number else cells
            for column, *cells in zip(columns, *found.rows, strict=True)
        }
        for part in beside_each_other(columns, texts, terminal.width, 1 + (ASKED in texts)):
            table = terminal.table()
            shown = [terminal.column(table, one.title, texts[one.key], number=one.number) for one in part]
            for cells in zip(*shown, strict=True):
                table.add_row(*map(terminal.text, cells))
            terminal.print(table)
    terminal.gap()
    for text in notes(run):
        terminal.item("note", text, style="yellow")
    for highest in run.highest:
        terminal.item("result", sentence(highest), style="bold")
