"""A diff as terminal output and as Markdown for a pull request."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from attnbench.formats.exports.md import plain, row
from attnbench.presentation import figures
from attnbench.presentation.block import Column, backend_name
from attnbench.record import Record, Status
from attnbench.report.table import VERDICTS, fitting
from attnbench.report.terminal import Terminal, decimal_aligned
from attnbench.verdict.change import Change, Diff, RowKey, Shift, Turned, key_of
from attnbench.verdict.yardsticks import NAME as YARDSTICKS
from attnbench.verdict.yardsticks import PREFIX

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

LEGEND = (
    "Change is B against A: + is slower; ± is the longer arm of its interval, and all intervals of a diff hold "
    "together with 95 %; seen from is the change that would have been called with 95 % probability."
)
"""Meaning of the signs, for the help and below the Markdown."""

MOST_ROWS = 60
"""Longer tables omit unchanged rows."""
MOST_REMARKS = 8
LOUD = ("slower", "faster", "unclear", "same")
"""Verdicts in the order of interest."""
MOST_TOLD = 10.0
"Wider intervals have no digits worth reading."
COARSE = 0.1
"Wider intervals support no decimals of a per cent."
STEADY_CLOCK = 0.005
"Least relative change of a clock that is shown."
STEADY_MB = 0.05
"Memory is shown with one decimal of a MiB."

Cells = dict[str, str]


def render_diff(found: Diff, console: Console, *, everything: bool = False) -> None:
    """Print a diff.

    Args:
        found: what was compared.
        console: colours and width are its own.
        everything: also print unchanged rows, however many.
    """
    terminal = Terminal(console)
    if found.shift is not None:
        terminal.line(shift_line(found.shift), "bold red" if found.shift.change > 0.0 else "bold green")
    terminal.title(f"{' '.join(found.a_ids)} → {' '.join(found.b_ids)}", "")
    for machine in found.machines:
        terminal.line(machine, style="dim")
    shown = list(found.changes)
    if len(shown) > MOST_ROWS and not everything:
        shown = [one for one in shown if one.verdict != "same"]
    if shown:
        terminal.gap()
        terminal.print(_table(shown, terminal))
        _seen_from(shown, terminal)
    _lists(found, terminal)
    for note in remarks(shown, found):
        terminal.item("note", note, style="yellow")
    terminal.gap()
    terminal.line(summary(found) + ("" if len(shown) == len(found.changes) else "; --all lists the rest"), "bold")


def markdown(found: Diff) -> str:
    """Return a diff for a pull request: changes first, unchanged rows folded."""
    title = f"{' '.join(found.a_ids)} → {' '.join(found.b_ids)}"
    lines = [f"**{plain(shift_line(found.shift))}**", ""] if found.shift else []
    lines += [
        f"### attnbench diff {title}",
        "",
        f"**{plain(summary(found))}**",
        "",
        *(plain(machine) + "  " for machine in found.machines),
        "",
    ]
    loud = [one for one in found.changes if one.verdict != "same"]
    same = [one for one in found.changes if one.verdict == "same"]
    lines += [*_markdown_table(loud), ""] if loud else []
    for label, items in listed(found):
        lines += [f"- **{label}** {plain(text)}" for text in items]
    lines += [f"- {plain(note)}" for note in remarks(loud, found)]
    if same:
        lines += ["", f"<details><summary>{len(same)} the same</summary>", "", *_markdown_table(same), "", "</details>"]
    return "\n".join([*lines, "", plain(LEGEND)]) + "\n"


def to_json(found: Diff) -> str:
    """Return all of a diff as JSON; changes are shares, + is slower."""
    data = {
        "a": found.a_ids,
        "b": found.b_ids,
        "shift": None if found.shift is None else dataclasses.asdict(found.shift),
        "same_within": found.same_within,
        "machines": found.machines,
        "rows": [
            _named(one.key)
            | {
                name: getattr(one, name)
                for name in (
                    "verdict",
                    "change",
                    "low",
                    "high",
                    "smallest",
                    "a_ms",
                    "b_ms",
                    "time_change",
                    "clock_change",
                    "cycles_change",
                    "memory_change_mb",
                    "processes",
                    "references",
                    "remark",
                )
            }
            for one in found.changes
        ],
        "turned": [
            _named(key_of(one.a))
            | {"a": one.a.status, "b": one.b.status, "reason": one.b.reason, "regression": one.is_regression}
            for one in found.turned
        ],
        "elsewhere": [_named(key_of(one)) for one in found.elsewhere],
        "untimed": [_named(key_of(one)) for one in found.untimed],
        "removed": [_named(key_of(one)) for one in found.removed],
        "added": [_named(key_of(one)) for one in found.added],
        "notes": found.notes,
    }
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def shift_line(shift: Shift) -> str:
    """Describe in one line the common change of all rows, and its cause."""
    beside = ", ".join(f"{name} {_percent(share)} %" for name, share in shift.yardsticks.items())
    change = f"{_percent(shift.change)} %"
    if shift.cause == "code":
        ends = "" if shift.low is None else f" ({_percent(shift.low)} to {_percent(shift.high)})"
        return (
            f"all rows: {change}{ends} against the yardsticks ({beside}): the code, or what it is built with, not "
            "the machine"
        )
    if shift.cause == "machine":
        evidence = [f"yardsticks {beside}"] if beside else []
        if abs(shift.clock_change or 0.0) > STEADY_CLOCK:
            evidence.append(f"SM clock {_percent(shift.clock_change)} %")
        words = f"all rows: {change} ({'; '.join(evidence)}): the machine; taken out of the changes"
    elif beside:
        words = f"all rows: {change}, the yardsticks {beside}: these do not tell machine from code; --replicates 3 may"
    else:
        words = f"all rows: {change}; without yardsticks on both sides nothing tells machine from code"
    return words if shift.shown else f"{words} (two runs may differ by as much)"


def summary(found: Diff) -> str:
    """Count the verdicts in one line."""
    counts = Counter[str](one.verdict for one in found.changes)
    words = [f"{counts[verdict]} {verdict}" for verdict in LOUD if counts[verdict]]
    regressions = len(found.regressions())
    for count, word in (
        (regressions, "lost"),
        (len(found.turned) - regressions, "otherwise ended"),
        (len(found.elsewhere), "on another GPU (no verdict; --across gpu gives one)"),
        (len(found.untimed), "without times"),
        (len(found.removed), "only in A"),
        (len(found.added), "only in B"),
    ):
        words += [f"{count} {word}"] if count else []
    return ", ".join(words)


def _table(changes: Sequence[Change], terminal: Terminal) -> Table:
    texts, kept = _fitting(changes, terminal)
    table = terminal.table()
    for column in kept:
        table.add_column(terminal.text(column.title), justify="right" if column.number else "left", overflow="fold")
    previous = None
    for index, one in enumerate(changes):
        line = [terminal.text(texts[column.key][index], _style(column, one)) for column in kept]
        line[0] = terminal.text("" if one.a.case_id == previous else one.a.case_id, "bold")
        previous = one.a.case_id
        table.add_row(*line)
    return table


def _fitting(changes: Sequence[Change], terminal: Terminal) -> tuple[dict[str, list[str]], list[Column]]:
    """Return all texts, and the columns that fit on the page."""
    columns, cells = table_of(changes)
    texts = {column.key: [*map(terminal.words, _aligned(column, cells))] for column in columns}
    return texts, fitting(columns, texts, terminal.width)


def _seen_from(changes: Sequence[Change], terminal: Terminal) -> None:
    """Print the smallest detectable changes if the page is too narrow for their column."""
    if any(column.key == "smallest" for column in _fitting(changes, terminal)[1]):
        return
    known = sorted(one.smallest for one in changes if one.smallest is not None)
    if known:
        ends = dict.fromkeys(map(_breadth, (known[0], known[-1])))
        terminal.item("seen from", " to ".join(ends) + " % (a wider terminal, --md or --json: row by row)", "dim")


def _markdown_table(changes: Sequence[Change]) -> Iterator[str]:
    columns, cells = table_of(changes)
    yield row([plain(column.title) for column in columns])
    yield row(["---:" if column.number else ":---" for column in columns])
    yield from (row([plain(line.get(column.key, "")) for column in columns]) for line in cells)


def table_of(changes: Sequence[Change]) -> tuple[list[Column], list[Cells]]:
    """Return the columns with content, and the texts of each row by column key."""
    unit = figures.unit_for(ms for one in changes for ms in (one.a_ms, one.b_ms))
    columns = [
        Column("case", "case", 0, number=False),
        Column("backend", "backend", 0, number=False),
        Column("a", f"A {unit.name}", 4),
        Column("b", f"B {unit.name}", 4),
        Column("change", "change %", 0),
        Column("margin", "±", 1),
        Column("verdict", "", 0, number=False),
        Column("smallest", "seen from %", 2),
        Column("cycles", "cycles %", 5),
        Column("memory", "MiB", 3),
        Column("processes", "processes", 7),
        Column("references", "against", 6, number=False),
    ]
    lines = [_line(one, unit) for one in changes]
    return [column for column in columns if any(line.get(column.key) for line in lines)], lines


def _line(one: Change, unit: figures.Unit) -> Cells:
    half = figures.half_interval(one.change, one.low, one.high)
    memory = one.memory_change_mb
    return {
        "case": one.a.case_id,
        "backend": backend_name(one.a),
        "a": figures.plain(one.a_ms * unit.per_ms, figures.STEADY_DIGITS),
        "b": figures.plain(one.b_ms * unit.per_ms, figures.STEADY_DIGITS),
        "change": _percent(one.change, half),
        "margin": _breadth(half),
        "verdict": one.verdict,
        "smallest": _breadth(one.smallest),
        "cycles": _percent(one.cycles_change),
        "memory": "" if memory is None or abs(memory) < STEADY_MB else f"{memory:+.1f}",
        "processes": str(one.processes[0]) if one.processes[0] == one.processes[1] else "{}/{}".format(*one.processes),
        "references": _few(one.references),
    }


def _few(names: Sequence[str]) -> str:
    backends = [name for name in names if not name.startswith(PREFIX)]
    words = [f"{len(backends)} unchanged"] if len(backends) > 2 else backends
    return ", ".join([*words, YARDSTICKS] if len(backends) < len(names) else words)


def _percent(share: float | None, half: float | None = None) -> str:
    """Format a change in per cent; without an interval a large one has no decimals either."""
    if share is None:
        return ""
    return f"{100 * share:+.{_decimals(abs(share) * COARSE if half is None else half)}f}"


def _breadth(share: float | None) -> str:
    if share is None:
        return ""
    return f"{100 * share:.{_decimals(share)}f}" if share < MOST_TOLD else f"> {100 * MOST_TOLD:.0f}"


def _decimals(half: float) -> int:
    return int(half < COARSE)


def _aligned(column: Column, cells: Sequence[Cells]) -> list[str]:
    texts = [line.get(column.key, "") for line in cells]
    return decimal_aligned(texts) if column.number else texts


def _style(column: Column, one: Change) -> str:
    if column.key in ("verdict", "change"):
        return VERDICTS[one.verdict]
    return "dim" if column.key in ("margin", "smallest", "processes", "references") else ""


def _lists(found: Diff, terminal: Terminal) -> None:
    for label, items in listed(found):
        for text in items:
            terminal.item(label, text, style="red" if label == "lost" else "dim")


def listed(found: Diff) -> Iterator[tuple[str, list[str]]]:
    """Yield what has no verdict, kind by kind."""
    yield "lost", [_turned(one) for one in found.turned if one.is_regression]
    yield "turned", [_turned(one) for one in found.turned if not one.is_regression]
    yield "only in A", _rows(found.removed)
    yield "only in B", _rows(found.added)


def _turned(one: Turned) -> str:
    words = f"{one.a.case_id} {backend_name(one.a)}: {one.a.status.value} in A, {one.b.status.value} in B"
    failed = one.b if one.b.status is not Status.PASSED else one.a
    return f"{words} ({' '.join(failed.reason.split())})" if failed.reason else words


def _rows(records: Iterable[Record]) -> list[str]:
    """Return rows of one side, grouped by backend."""
    by_backend: dict[str, list[str]] = {}
    for record in records:
        by_backend.setdefault(backend_name(record), []).append(record.case_id)
    return [
        f"{name}: {cases[0]}" + (f" and {len(cases) - 1} more cases" if len(cases) > 1 else "")
        for name, cases in by_backend.items()
    ]


def remarks(shown: Sequence[Change], found: Diff) -> Iterator[str]:
    """What a reader of some rows must know of them, and of the whole."""
    said: dict[str, list[Change]] = {}
    for one in shown:
        if one.remark and one.verdict != "same":
            said.setdefault(one.remark, []).append(one)
    for remark, (first, *others) in list(said.items())[:MOST_REMARKS]:
        more = f", and {len(others)} more row{'s' if len(others) > 1 else ''}" if others else ""
        yield f"{first.a.case_id} {backend_name(first.a)}{more}: {remark}"
    if left := sum(len(rows) for rows in list(said.values())[MOST_REMARKS:]):
        yield f"{left} more rows with such a remark: --json has them"
    yield from found.notes


def _named(key: RowKey) -> dict[str, Any]:
    return dict(zip(("workload", "case_id", "backend", "config"), key, strict=True))
