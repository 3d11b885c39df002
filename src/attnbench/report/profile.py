"""Tables of profiles on a terminal: plain heads and texts, whoever made them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnbench.report.page import Paper, decimal_aligned

if TYPE_CHECKING:
    from rich.console import Console

LONG = "remark"
"""The column that is wrapped and never cut."""


def render_profile_table(
    console: Console, title: str, heads: Sequence[str], texts: Sequence[Sequence[str]], *,
    numbers: Sequence[bool], notes: Sequence[str] = (),
) -> None:
    """Print one table.

    Args:
        console: colours and width are its own.
        title: above it.
        heads: of the columns.
        texts: rows of cells.
        numbers: which columns stand right, on their decimal points.
        notes: under it.
    """
    paper = Paper(console)
    paper.gap()
    paper.title(title, "")
    columns = [decimal_aligned([row[index] for row in texts]) if number else [row[index] for row in texts]
               for index, number in enumerate(numbers)]
    table = paper.table()
    for head, number in zip(heads, numbers, strict=True):
        table.add_column(paper.text(head), justify="right" if number else "left",
                         overflow="fold", no_wrap=number, ratio=1 if head == LONG else None)
    for cells in zip(*columns, strict=True):
        table.add_row(*(paper.text(cell) for cell in cells))
    paper.print(table)
    for note in notes:
        paper.item("note", note, style="yellow")
