"""Tables of profiles on a terminal, from plain headings and texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnbench.report.terminal import Terminal, decimal_aligned

if TYPE_CHECKING:
    from rich.console import Console

LONG = "remark"
"""The column that is wrapped and never shortened."""

GAP = 2
NARROWEST, USUAL = 10, 24
"""Least width of a text column in characters, and the width it keeps while other columns can be dropped instead."""


def render_profile_table(
    console: Console,
    title: str,
    heads: Sequence[str],
    texts: Sequence[Sequence[str]],
    *,
    numbers: Sequence[bool],
    ranks: Sequence[int] = (),
    notes: Sequence[str] = (),
) -> None:
    """Print one table; on a narrow page less of it, with a note on what is omitted.

    Args:
        console: output, with its colours and width.
        title: above it.
        heads: of the columns.
        texts: rows of cells.
        numbers: which columns are right-aligned on their decimal points.
        ranks: of the columns; the highest is dropped first, 0 never.
        notes: below it.
    """
    terminal = Terminal(console)
    terminal.gap()
    terminal.title(title, "")
    columns = [[terminal.words(row[index]) for row in texts] for index in range(len(heads))]
    columns = [decimal_aligned(cells) if number else cells for cells, number in zip(columns, numbers, strict=True)]
    widths = [max(map(len, [head, *cells])) for head, cells in zip(heads, columns, strict=True)]
    least = [width if number else min(width, USUAL) for width, number in zip(widths, numbers, strict=True)]
    kept = _fitting(least, ranks or [0] * len(heads), heads, terminal.width)
    cuts = _cuts(widths, kept, numbers, heads, terminal.width)
    table = terminal.table()
    for index in kept:
        # Padded here, because a right-justified column loses the trailing blanks that align decimal points.
        head = heads[index].rjust(widths[index]) if numbers[index] else heads[index]
        table.add_column(terminal.text(head), overflow="fold", no_wrap=heads[index] != LONG)
    for row in range(len(texts)):
        cells = (columns[index][row].rjust(widths[index] if numbers[index] else 0) for index in kept)
        table.add_row(*(terminal.text(_cut(cell, cuts.get(index))) for cell, index in zip(cells, kept, strict=True)))
    terminal.print(table)
    left_out = [head for index, head in enumerate(heads) if index not in kept]
    if left_out:
        terminal.item("note", f"for want of room without {', '.join(left_out)}", style="yellow")
    for note in notes:
        terminal.item("note", note, style="yellow")


def _wide(widths: Sequence[int], kept: Sequence[int], heads: Sequence[str]) -> int:
    shown = [NARROWEST * 3 if heads[index] == LONG else widths[index] for index in kept]
    return sum(shown) + GAP * (len(kept) - 1)


def _fitting(widths: Sequence[int], ranks: Sequence[int], heads: Sequence[str], width: int) -> list[int]:
    """Return the columns that fit on the page."""
    kept = list(range(len(widths)))
    while _wide(widths, kept, heads) > width and any(ranks[index] for index in kept):
        kept.remove(max(kept, key=lambda index: (ranks[index], index)))
    return kept


def _cuts(
    widths: Sequence[int], kept: Sequence[int], numbers: Sequence[bool], heads: Sequence[str], width: int
) -> dict[int, int]:
    """Return the widths of shortened text columns, by index, if all together are too wide."""
    found = {index: widths[index] for index in kept if not numbers[index] and heads[index] != LONG}
    over = _wide(widths, kept, heads) - width
    while over > 0 and found and max(found.values()) > NARROWEST:
        widest = max(found, key=lambda index: found[index])
        found[widest] -= 1
        over -= 1
    return found


def _cut(text: str, width: int | None) -> str:
    return text if width is None or len(text) <= width else text[: width - 1] + "…"
