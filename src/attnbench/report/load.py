"""The result of a load on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnbench.presentation.load import notes, sentence, tables, title_of
from attnbench.report.terminal import Terminal, decimal_aligned
from attnbench.store.load_file import LoadRun

if TYPE_CHECKING:
    from rich.console import Console


def render_load(run: LoadRun, console: Console) -> None:
    """Print the tables, then what is to be noted."""
    terminal = Terminal(console)
    terminal.title(title_of(run), "")
    for found in tables(run):
        terminal.gap()
        terminal.line(found.title, "dim")
        table = terminal.table()
        columns = [
            decimal_aligned([row[place] for row in found.rows]) if place else [row[0] for row in found.rows]
            for place in range(len(found.heading))
        ]
        for place, name in enumerate(found.heading):
            table.add_column(terminal.text(name), justify="right" if place else "left", overflow="fold")
        for cells in zip(*columns, strict=True):
            table.add_row(*(terminal.text(cell) for cell in cells))
        terminal.print(table)
    terminal.gap()
    for text in notes(run):
        terminal.item("note", text, style="yellow")
    for highest in run.highest:
        terminal.item("result", sentence(highest), style="bold")
