"""Terminal output of a run: a table for each complete case, and the matrix of all at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from attnbench.presentation.block import Block, Column, Line, Reason
from attnbench.presentation.blocks import MOST_BLOCKS, by_case, case_blocks, complete_cases
from attnbench.presentation.columns import View
from attnbench.presentation.matrix import summary
from attnbench.record import Record, Run
from attnbench.report.matrix import print_lost, print_sentences, print_summary
from attnbench.report.terminal import Terminal, decimal_aligned
from attnbench.store.environments import machine_words
from attnbench.store.replicates import case_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

VERDICTS = {"faster": "green", "slower": "red", "same": "", "unclear": "yellow"}
GAP = 2
WIDER = "a wider terminal or --columns all shows them"


def render_run(run: Run, console: Console, view: View | None = None, *, wider: str = WIDER) -> None:
    """Print a whole run: a table per case, then the matrix of cases by backends and the fastest ones.

    Args:
        run: with its statistics derived (`store.derive`, `store.runfile.read`).
        console: output, with its colours and width; piped output has no escape codes.
        view: columns and order of rows; None means the default.
        wider: how to show the columns that do not fit.
    """
    Tables(console, view, wider=wider).end(run)


def render_matrix(run: Run, console: Console) -> None:
    """Print the summary of a run, without its tables case by case: matrix, losses, notes and the fastest ones."""
    terminal = Terminal(console)
    for words in dict.fromkeys(" · ".join(machine_words(environment)) for environment in run.environments):
        terminal.line(words, style="dim")
    terminal.gap()
    print_summary(summary(run), terminal, notes=True)


def render_blocks(blocks: Sequence[Block], console: Console) -> None:
    """Print tables by themselves, completely: on a narrow terminal in several parts."""
    terminal = Terminal(console)
    for number, block in enumerate(blocks):
        if number:
            terminal.gap()
        _block(replace(block, columns=[replace(column, rank=0) for column in block.columns]), terminal)


class Tables:
    """Prints a growing run: each case when it is complete, and the summary at the end.

    A loss is printed when it first occurs, and once more below the matrix with all cases concerned.
    """

    def __init__(self, console: Console, view: View | None = None, *, wider: str = WIDER) -> None:
        self.terminal, self.view, self.wider = Terminal(console), view or View(), wider
        self._cases: set[str] = set()
        self._machines: list[str] = []
        self._printed: set[Reason] = set()
        self._dropped: dict[str, None] = {}
        "keys of columns that did not fit"

    def more(self, run: Run) -> None:
        """Print the complete cases that were not printed yet."""
        self._print(run, complete_cases(run))

    def end(self, run: Run) -> None:
        """Print the remaining cases, complete or not, and the summary."""
        self._print(run, list(by_case(run.records).values()))
        found = summary(run, self.view)
        for block in found.grids:
            self.terminal.gap()
            _block(block, self.terminal)
        if len(self._cases) > 1 or not run.settings.measure:
            self.terminal.gap()
            print_summary(found, self.terminal, notes=len(self._cases) > MOST_BLOCKS)
        else:  # for a single case the table replaces the matrix
            print_sentences(found, self.terminal)
        if self._dropped:
            self.terminal.item("width", f"no room for {', '.join(self._dropped)}: {self.wider}", style="dim")

    def _print(self, run: Run, cases: Sequence[Sequence[Record]]) -> None:
        for environment in run.environments:
            words = " · ".join(machine_words(environment))
            if words not in self._machines:  # GPUs of one model are distinguished in the tables
                self._machines.append(words)
                self.terminal.line(words, style="dim")
        many = len({group.case_id for group in run.plan} or by_case(run.records)) > MOST_BLOCKS
        for records in cases:
            name = case_of(records[0])
            if name in self._cases:
                continue
            self._cases.add(name)
            found = case_blocks(run, records, self._printed, self.view)
            self._printed |= {item.reason_of for block in found for item in block.lost}
            for block in found:
                self.terminal.gap()
                # With very many cases the notes are printed once, below the matrix.
                self._dropped |= _block(replace(block, notes=(), reading=()) if many else block, self.terminal)


def _block(block: Block, terminal: Terminal) -> dict[str, None]:
    """Print a table with its notes; return the keys of the columns that did not fit."""
    dropped: dict[str, None] = {}
    words = " · ".join(block.conditions.words()) if block.conditions else ""
    terminal.title(block.heading, words)
    if block.lines:
        tables, dropped = _tables(block, terminal)
        for table in tables:
            terminal.print(table)
    if block.lost:
        print_lost(block.lost, terminal)
    for note in block.notes:
        terminal.item("note", note, style="yellow")
    for sentence in block.reading:
        terminal.item("reading", sentence, style="cyan")
    return dropped


def _tables(block: Block, terminal: Terminal) -> tuple[list[Table], dict[str, None]]:
    """Return the table in as many parts as needed, and the keys of columns that did not fit."""
    texts = {column.key: [*map(terminal.words, _texts(column, block.lines))] for column in block.columns}
    if any(column.rank for column in block.columns):
        parts = [fitting(block.columns, texts, terminal.width)]
    else:  # all columns were requested
        parts = beside_each_other(block.columns, texts, terminal.width)
    tables = []
    for columns in parts:
        table = terminal.table()
        cells = [terminal.column(table, column.title, texts[column.key], number=column.number) for column in columns]
        for line, *row in zip(block.lines, *cells, strict=True):
            there = zip(columns, row, strict=True)
            table.add_row(*(terminal.text(text, _style(column, line)) for column, text in there))
        tables.append(table)
    shown = {column.key for columns in parts for column in columns}
    left_out = (column for column in block.columns if column.key not in shown and column.title not in ("", "95 %"))
    return tables, dict.fromkeys(column.key for column in left_out)


def beside_each_other(
    columns: Sequence[Column], texts: dict[str, list[str]], width: int, keys: int = 1
) -> list[list[Column]]:
    """Split columns into parts that fit on the page, each starting with the first `keys` columns."""
    wide = {one.key: max(map(len, [one.title, *texts[one.key]])) + GAP for one in columns}
    named = list(columns[:keys])
    parts = [[*named]]
    for column in columns[keys:]:
        if len(parts[-1]) > keys and sum(wide[one.key] for one in [*parts[-1], column]) - GAP > width:
            parts.append([*named])
        parts[-1].append(column)
    return parts


def _texts(column: Column, lines: Sequence[Line]) -> list[str]:
    texts = [line.cells.get(column.key, "") for line in lines]
    return decimal_aligned(texts) if column.number else texts


def fitting(columns: Sequence[Column], texts: dict[str, list[str]], width: int) -> list[Column]:
    """Return the columns that fit on the page; those of the highest rank are dropped first."""
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
