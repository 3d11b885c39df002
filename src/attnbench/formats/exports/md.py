"""A GitHub table a case, for issues and pull requests: what the terminal shows, in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from attnbench.formats.exports.base import Exporter
from attnbench.presentation.block import LEGEND, Block, Lost
from attnbench.presentation.blocks import arrange
from attnbench.record import Run
from attnbench.store.environments import machine_words


def render(run: Run) -> bytes:
    """Headings, tables, what was not measured, notes; at the end what the signs mean."""
    page = arrange(run)
    machines = ["".join(f" · {plain(word)}" for word in machine_words(item)) for item in run.environments]
    lines = [f"## {plain(run.suite)}", "", plain(run.started) + "".join(machines), ""]
    for block in page.blocks:
        lines += _block(block)
    lines += _lost(page.lost)
    lines += [plain(LEGEND)] if any(block.lines for block in page.blocks) else []
    return ("\n".join(lines).rstrip("\n") + "\n").encode()


def _block(block: Block) -> Iterator[str]:
    yield from (f"### {plain(block.title)}", "")
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
        where = f" ({item.where})" if item.where else ""
        yield f"- **{item.status.value}** {plain(item.backend)}{plain(where)}: {plain(item.reason)}"
    if lost:
        yield ""


def row(cells: Sequence[str]) -> str:
    """A line of a table; cells as they are to stand in Markdown."""
    return f"| {' | '.join(cells)} |"


def plain(text: str) -> str:
    """Text that Markdown shows as it is: no cell ends early, no tag or emphasis begins."""
    return re.sub(r"([\\|*_`<>\[\]])", r"\\\1", " ".join(text.split()))


EXPORTER = Exporter(title="GitHub tables for issues and pull requests", text=True, render=render)
