"""One GitHub table per case, for issues and pull requests: the terminal's tables in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from attnbench.formats.exports.base import Exporter
from attnbench.presentation.block import LEGEND, Block, Lost
from attnbench.presentation.blocks import arrange
from attnbench.presentation.matrix import BEST, Cell, Matrix, summary
from attnbench.record import Run
from attnbench.store.environments import machine_words


def render(run: Run) -> bytes:
    """Return who is fastest, the matrix of all cases, one table per case with notes, and the legend."""
    page = arrange(run)
    machines = ["".join(f" · {plain(word)}" for word in machine_words(item)) for item in run.environments]
    lines = [f"## {plain(run.suite)}", "", plain(run.started) + "".join(dict.fromkeys(machines)), ""]
    found = summary(run)
    for sentence in filter(None, (found.sentence, *found.results)):
        lines += [f"**{plain(sentence)}**", ""]
    if len({row.case_id for matrix in found.matrices for row in matrix.rows}) > 1:
        for matrix in found.matrices:
            lines += _matrix(matrix)
        lines += _lost(found.lost)
    for block in (*found.grids, *page.blocks):
        lines += _block(block)
    lines += _lost(page.lost)
    lines += [plain(LEGEND)] if any(block.lines for block in page.blocks) else []
    return ("\n".join(lines).rstrip("\n") + "\n").encode()


def _matrix(matrix: Matrix) -> Iterator[str]:
    yield from (f"### {plain(matrix.title)}", "")
    if matrix.conditions and matrix.conditions.words():
        yield from (" · ".join(map(plain, matrix.conditions.words())), "")
    leading = matrix.leading
    yield row([*(title for title, _ in leading), *map(plain, matrix.backends)])
    yield row([*[":---"] * len(leading), *["---:"] * len(matrix.backends)])
    for index, line in enumerate(matrix.rows):
        yield row(
            [
                *(plain(column[index]) for _, column in leading),
                *(_cell(line.cells.get(name)) for name in matrix.backends),
            ]
        )
    yield ""
    if matrix.legend:
        words = {BEST: "bold"}
        yield from (", ".join(f"{words.get(mark, plain(mark))}: {said}" for mark, said in matrix.legend.items()), "")


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    text, host = plain(cell.text), f" h{plain(cell.host)}" if cell.host else ""
    if cell.mark == BEST:
        return f"**{text}**{host}"
    return (f"{text} {plain(cell.mark)}" if cell.mark else text) + host


def _block(block: Block) -> Iterator[str]:
    yield from (f"### {plain(block.heading)}", "")
    if block.conditions and block.conditions.words():
        yield from (" · ".join(map(plain, block.conditions.words())), "")
    if block.lines:
        yield row([plain(column.title) for column in block.columns])
        yield row(["---:" if column.number else ":---" for column in block.columns])
        yield from (row([plain(line.cells.get(column.key, "")) for column in block.columns]) for line in block.lines)
        yield ""
    yield from _lost(block.lost)
    yield from (f"- {plain(note)}" for note in (*block.notes, *block.reading))
    if block.notes or block.reading:
        yield ""


def _lost(lost: Sequence[Lost]) -> Iterator[str]:
    for item in lost:
        who = f"{item.backend} ({item.where})" if item.where else item.backend
        yield f"- **{item.status.value}** {plain(who)}: {plain(item.reason)}"
    if lost:
        yield ""


def row(cells: Sequence[str]) -> str:
    """Return a row of a table from cells that are Markdown already."""
    return f"| {' | '.join(cells)} |"


def plain(text: str) -> str:
    """Escape a text for Markdown: it ends no cell and begins no tag or emphasis."""
    return re.sub(r"([\\|*_`<>\[\]])", r"\\\1", " ".join(text.split()))


EXPORTER = Exporter(title="GitHub tables for issues and pull requests", text=True, render=render)
