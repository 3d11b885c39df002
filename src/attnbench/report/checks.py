"""Terminal output of `check`: every output and gradient compared with the oracle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from attnbench.presentation.block import backend_name
from attnbench.presentation.blocks import by_case, complete_cases, lost_of
from attnbench.presentation.matrix import summary
from attnbench.presentation.remarks import own_notes
from attnbench.record import Error, Record, Run, Status
from attnbench.report.matrix import print_summary
from attnbench.report.terminal import Terminal, decimal_aligned

if TYPE_CHECKING:
    from rich.console import Console

COLUMNS = (
    *("backend", "output", "max abs", "budget", "rel L1", "L1 budget", "worst head", "head budget"),
    *("RMSE", "1 - cosine", ""),
)
SPARE = ("worst head", "RMSE", "1 - cosine")
"Columns that are dropped on a narrow page; the worst head (its relative L1) only if it has no budget."
BOUNDS = ("L1 budget", "head budget")
"Columns that are there if a backend has such a budget."
ROOMY = 100
"Least width in characters at which these columns fit."


def render_check(run: Run, console: Console) -> None:
    """Print a whole check: a table per case with each backend's errors and budgets, then the matrix and the counts."""
    Checks(console).end(run)


class Checks:
    """Prints a growing check, as `report.table.Tables` prints times."""

    def __init__(self, console: Console) -> None:
        self.terminal = Terminal(console)
        self._groups: set[str] = set()

    def more(self, run: Run) -> None:
        """Print the complete cases that were not printed yet."""
        self._print(complete_cases(run))

    def end(self, run: Run) -> None:
        """Print the remaining cases, complete or not, and the summary."""
        self._print(list(by_case(run.records).values()))
        if len({record.case_id for record in run.records}) > 1:
            self.terminal.gap()
            print_summary(summary(run), self.terminal)
        statuses = [record.status for record in run.records]
        counts = [f"{statuses.count(status)} {status.value}" for status in Status if status in statuses]
        self.terminal.gap()
        self.terminal.line(", ".join(counts) or "nothing was checked", "bold")

    def _print(self, cases: Iterable[Sequence[Record]]) -> None:
        for records in cases:
            groups: dict[str, list[Record]] = {}
            for record in records:
                groups.setdefault(record.group, []).append(record)
            for group, members in groups.items():
                if group not in self._groups:
                    if self._groups:
                        self.terminal.gap()
                    self._groups.add(group)
                    _case(members, self.terminal)


def _case(records: Sequence[Record], terminal: Terminal) -> None:
    first = records[0]
    inputs = f"input {first.input}" if first.input not in (None, "normal") else ""
    terminal.title(first.case_id + (f"  (replicate {first.replicate + 1})" if first.replicate else ""), inputs)
    rows = [row for record in records for row in error_rows(record)]
    if rows:
        texts = {name: decimal_aligned([row[name] for row in rows]) if name == "max abs" else
                 [row[name] for row in rows] for name in COLUMNS}  # fmt: skip
        table = terminal.table()
        shown = _shown(rows, roomy=terminal.width >= ROOMY)
        for name in shown:
            table.add_column(name, justify="left" if name in ("backend", "output", "") else "right", no_wrap=True)
        for index, row in enumerate(rows):
            wrong = row[""] == "wrong"
            table.add_row(*(terminal.text(texts[name][index], "bold red" if wrong and name in ("", "max abs") else "")
                            for name in shown))  # fmt: skip
        terminal.print(table)
    lost = lost_of(records, say_where=False)
    if lost:
        terminal.losses((item.status.value, item.backend, item.reason) for item in lost)
    for note in own_notes(records):
        terminal.item("note", note, "yellow")


def _shown(rows: Sequence[dict[str, str]], *, roomy: bool) -> list[str]:
    """Return the columns that the page has room for, without those of which no row has anything to say."""
    said = {name for name in COLUMNS if any(row[name] for row in rows)}
    needed = {"worst head"} if "head budget" in said else set()
    return [
        name
        for name in COLUMNS
        if (name in said or name not in (*BOUNDS, "worst head")) and (roomy or name not in SPARE or name in needed)
    ]


def error_rows(record: Record) -> list[dict[str, str]]:
    """Return texts of `COLUMNS`, one row per output or gradient; the first row has the backend."""
    return [
        {
            "backend": "" if index else backend_name(record),
            "output": name,
            "max abs": _size(error.max_abs),
            "budget": _size(error.budget),
            "rel L1": _size(error.rel_l1),
            "L1 budget": _if_any(error.rel_l1_budget),
            "worst head": _if_any(error.head_rel_l1),
            "head budget": _if_any(error.head_rel_l1_budget),
            "RMSE": _size(error.rmse),
            "1 - cosine": _size(_short_of_one(error)),
            "": "ok" if error.ok else "wrong",
        }
        for index, (name, error) in enumerate(record.errors.items())
    ]


def _short_of_one(error: Error) -> float | None:
    """Return 1 - cosine: cosines of right outputs are all 1.000, and only the difference is informative."""
    return None if error.cosine is None else max(0.0, 1.0 - error.cosine)


def _if_any(value: float | None) -> str:
    return "" if value is None else _size(value)


def _size(value: float | None) -> str:
    return "NaN" if value is None else f"{value:.1e}"
