"""A table of a capture: plain data, for a terminal, Markdown or CSV."""

from __future__ import annotations

import math
from dataclasses import dataclass

Cell = str | int | float | None
DIGITS = 4
MOST = 20
"Rows shown on a terminal; the CSV has all."


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Headers and rows; a cell without a value is None."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    "of the columns: if the terminal is too narrow, the highest rank is dropped first, 0 never; () is all 0"

    def texts(self) -> list[list[str]]:
        """Return the rows as people read them."""
        return [[text(cell) for cell in row] for row in self.rows]

    def numbers(self) -> list[bool]:
        """Return which columns hold numbers."""
        return [any(isinstance(row[index], int | float) for row in self.rows) for index in range(len(self.heads))]

    def markdown(self) -> str:
        """Return the table as Markdown, without the title."""
        lines = [
            "| " + " | ".join(map(_escaped, self.heads)) + " |",
            "|" + "|".join(" ---: " if number else " --- " for number in self.numbers()) + "|",
        ]
        lines += ["| " + " | ".join(map(_escaped, row)) + " |" for row in self.texts()]
        return "\n".join([*lines, *(f"\n{note}" for note in self.notes)]) + "\n"

    def plain(self) -> str:
        """Return the table as columns of a text file."""
        texts, numbers = self.texts(), self.numbers()
        widths = [max(len(row[index]) for row in [list(self.heads), *texts]) for index in range(len(self.heads))]
        lines = [
            "  ".join(
                cell.rjust(width) if number else cell.ljust(width)
                for cell, width, number in zip(row, widths, numbers, strict=True)
            ).rstrip()
            for row in [list(self.heads), *texts]
        ]
        return "\n".join([self.title, *lines, *self.notes]) + "\n"


def text(cell: Cell) -> str:
    """Return a cell as people read it: four digits, thousands separated, empty without a value."""
    if cell is None or isinstance(cell, str):
        return cell or ""
    if isinstance(cell, int):
        return f"{cell:,}"
    size = abs(cell)
    if size >= 10 ** (DIGITS - 1):
        return f"{cell:,.0f}"
    if size == 0.0:
        return "0"
    if size < 1e-6:
        return f"{cell:.{DIGITS - 1}g}"
    return f"{cell:.{DIGITS - 1 - math.floor(math.log10(size))}f}"


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("<", "&lt;")
