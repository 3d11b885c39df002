"""A committed run of a suite as the docs show it: the command, cases by backends, one sentence, what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from attnbench.presentation.matrix import BEST, Cell, Matrix, summary
from attnbench.store.runfile import read

Rows = list[list[str]]


def command(path: Path) -> str:
    """The line that measured the run."""
    return read(path).command


def parts(path: Path) -> Iterator[tuple[str, list[str], Rows]]:
    """Of each way of measuring: what the numbers are, the heads, and a row a case; the fastest in bold."""
    for matrix in summary(read(path)).matrices:
        words = [matrix.title, *(matrix.conditions.words() if matrix.conditions else ())]
        yield " · ".join(words), ["case", *(f"`{name}`" for name in matrix.backends)], _rows(matrix)


def sentences(path: Path) -> list[str]:
    """Who is fastest, what the signs mean, and who has no time."""
    found = summary(read(path))
    marks = {mark: words for matrix in found.matrices for mark, words in matrix.marks.items() if mark != BEST}
    said = [f"**{found.sentence}**"] if found.sentence else []
    said += [f"Bold: fastest{''.join(f'; {mark}: {words}' for mark, words in marks.items())}."] if said else []
    lost: dict[str, list[str]] = {}
    for one in found.lost:
        lost.setdefault(f"{one.status.value}: {one.reason}", []).append(f"`{one.backend}`")
    return said + [f"{', '.join(dict.fromkeys(names))} {why}." for why, names in lost.items()]


def _rows(matrix: Matrix) -> Rows:
    return [[row.name, *(_cell(row.cells.get(name)) for name in matrix.backends)] for row in matrix.rows]


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    return f"**{cell.text}**" if cell.mark == BEST else f"{cell.text} {cell.mark}".strip()
