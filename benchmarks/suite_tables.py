"""A committed run of a suite as the docs show it: the command, cases by backends, one sentence, what is missing.

Of several timers their own table stands below; of several processes a row says how far these lie apart.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from kernel_tables import load

from attnbench.presentation.block import Block
from attnbench.presentation.blocks import blocks
from attnbench.presentation.matrix import BEST, Cell, Matrix, summary
from attnbench.store.replicates import is_replicated

Rows = list[list[str]]
PROCESSES = ("backend", "median", "spread", "processes", "samples")
"What is shown of a case that several processes measured."


def command(path: Path) -> str:
    """The line that measured the run."""
    return load(path).command


def parts(path: Path) -> Iterator[tuple[str, list[str], Rows]]:
    """Of each way of measuring: what the numbers are, the heads, and a row a case; the fastest in bold."""
    run = load(path)
    if is_replicated(run):
        yield from (_table(block, PROCESSES) for block in blocks(run))
        return
    for matrix in summary(run).matrices:
        words = [matrix.title, *(matrix.conditions.words() if matrix.conditions else ())]
        yield " · ".join(words), ["case", *(f"`{name}`" for name in matrix.backends)], _rows(matrix)
    for block in blocks(run):
        if block.columns and block.columns[0].title.startswith("by timer"):
            yield _table(block, [column.key for column in block.columns])


def _table(block: Block, keys: Sequence[str]) -> tuple[str, list[str], Rows]:
    """Some columns of the table of a case."""
    columns = [column for column in block.columns if column.key in keys]
    words = [block.title, *(block.conditions.words() if block.conditions else ())]
    rows = [[line.cells.get(column.key, "") for column in columns] for line in block.lines]
    return " · ".join(words), [column.title for column in columns], rows


def sentences(path: Path) -> list[str]:
    """Who is fastest, what the signs mean, and who has no time."""
    found = summary(load(path))
    marks = {mark: words for matrix in found.matrices for mark, words in matrix.marks.items() if mark != BEST}
    said = [f"**{found.sentence}**"] if found.sentence else []
    said += [f"{sentence}." for sentence in found.results]
    said += (
        [f"Bold: fastest{''.join(f'; {mark}: {words}' for mark, words in marks.items())}."] if found.sentence else []
    )
    lost: dict[str, list[str]] = {}
    for one in found.lost:
        reason = textwrap.shorten(one.reason or "", 160, placeholder=" …")
        lost.setdefault(f"{one.status.value}: {reason}", []).append(f"`{one.backend}`")
    return said + [f"{', '.join(dict.fromkeys(names))} {why}." for why, names in lost.items()]


def _rows(matrix: Matrix) -> Rows:
    return [[row.name, *(_cell(row.cells.get(name)) for name in matrix.backends)] for row in matrix.rows]


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    return f"**{cell.text}**" if cell.mark == BEST else f"{cell.text} {cell.mark}".strip()
