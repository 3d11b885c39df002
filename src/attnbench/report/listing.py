"""Tables for `list backends|configs|suites|workloads|timers|layouts`, from plain rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from attnbench.report.terminal import Terminal

if TYPE_CHECKING:
    from rich.console import Console

GAP = 2
NARROWEST_LAST = 24
"Characters that the last column needs to be read beside the others."
SHORT = 24
"Characters of a name and its value that may share a line with others."


def render_list(
    rows: Sequence[Mapping[str, object]], console: Console, *, empty: str = "nothing to list", commands: bool = False
) -> None:
    """Print rows under the names of their fields; the last column takes the remaining width and wraps.

    Where too little is left it stands below its row, and on a page too narrow for the others the fields
    stand below the first one.

    Args:
        rows: one mapping per line, all with the keys of the first; None is blank, true and false are
            yes and no.
        console: output.
        empty: printed if there are no rows.
        commands: the last column contains commands to copy, which are never broken.
    """
    terminal = Terminal(console)
    if not rows:
        terminal.line(empty, "dim")
        return
    names = list(rows[0])
    texts = [[_text(row.get(name)) for name in names] for row in rows]
    widths = [max(len(line[place]) for line in [names, *texts]) for place in range(len(names))]
    others = sum(widths[:-1]) + GAP * (len(widths) - 1)
    least = widths[-1] if commands else min(widths[-1], NARROWEST_LAST)
    if others + GAP + least <= terminal.width:
        _side_by_side(names, texts, terminal)
    elif others <= terminal.width:
        _hanging(names, texts, widths, terminal)
    else:
        _stacked(names, texts, terminal)


def _side_by_side(names: Sequence[str], texts: Sequence[Sequence[str]], terminal: Terminal) -> None:
    table = terminal.table()
    for place, name in enumerate(names):
        last = place == len(names) - 1
        table.add_column(terminal.text(name), no_wrap=not last, overflow="fold")
    for line in texts:
        table.add_row(*(terminal.text(text, "bold" if place == 0 else "") for place, text in enumerate(line)))
    terminal.print(table)


def _hanging(names: Sequence[str], texts: Sequence[Sequence[str]], widths: Sequence[int], terminal: Terminal) -> None:
    """Print the last field below its row, unbroken, because it may be a command to copy."""
    for number, line in enumerate([names, *texts]):
        cells = [text.ljust(width) for text, width in zip(line, widths, strict=True)][:-1]
        terminal.line((" " * GAP).join(cells).rstrip(), "" if number else "dim")
        if number and line[-1]:
            terminal.unbroken(" " * GAP + line[-1])


def _stacked(names: Sequence[str], texts: Sequence[Sequence[str]], terminal: Terminal) -> None:
    """For a narrow page: the first field as a title, the others below it, short ones beside each other."""
    for line in texts:
        terminal.line(line[0], "bold")
        beside: list[str] = []
        for name, text in zip(names[1:], line[1:], strict=True):
            words = " " * GAP + f"{name} {text}"
            if beside and (len(words) > SHORT or len("".join([*beside, words])) > terminal.width):
                terminal.line("".join(beside))
                beside = []
            if text and len(words) <= SHORT:
                beside.append(words)
            elif text:
                terminal.item(f"  {name}", text, "dim")
        if beside:
            terminal.line("".join(beside))


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return " ".join(str(value).split())
