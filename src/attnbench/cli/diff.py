"""`attnbench diff`: two runs compared, a verdict for every row of both."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.cli.output import Output
from attnbench.cli.parser import Parser
from attnbench.cli.saved import read_run
from attnbench.errors import UsageError, refusal, unknown
from attnbench.record import Run
from attnbench.store.files import is_file

if TYPE_CHECKING:
    from attnbench.verdict.change import Diff

WHO = "attnbench diff"
NO_REFERENCE = "none"


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    parser.add_argument("a", metavar="A", help=(
        "run file, or the id of a run in --out or in the history; several, with commas, are more processes of the same "
        "code"))
    parser.add_argument("b", metavar="B", help="the same of the other side")
    group = parser.add_argument_group("judging")
    group.add_argument("--reference", metavar="NAMES", help=(
        "backends that stayed the same: rows are judged by their ratio to these; none: by their own times (default: "
        "those with one version and source in A and B)"))
    group.add_argument("--same-within", metavar="PERCENT", help="what `same` rules out (default: 3)")
    group.add_argument("--fail-over", metavar="PERCENT", help=(
        "exit 1 if a row is `slower` by more than this, or passed in A and is wrong, out of memory, crashed or failed "
        "in B (default: exit 0 whatever is found)"))
    group.add_argument("--across", metavar="NAMES", help=(
        "compare although these differ: timer, l2, regime, card, input (default: refuse)"))
    group = parser.add_argument_group("output", "A path, or - for stdout (the table then moves to stderr).")
    group.add_argument("--md", metavar="PATH", help="Markdown for a pull request")
    group.add_argument("--json", metavar="PATH", help="everything, as JSON")
    group.add_argument("--all", action="store_true", help="list rows that are the same, however many")
    group.add_argument("--out", metavar="DIR", default="results", help="folder of run files (default: results)")
    from attnbench.report.diff import LEGEND

    parser.example("attnbench diff 1a2b3c4d 5e6f7a8b",
                   "attnbench diff before.json after.json --fail-over 3 --md diff.md",
                   "attnbench diff old-1.json,old-2.json new-1.json,new-2.json",
                   remark=LEGEND)


def run(args: argparse.Namespace) -> int:
    """Compare; 1 if --fail-over is given and something is worse by more than it."""
    from attnbench.report.diff import markdown, render_diff, to_json
    from attnbench.store.files import check_writable, write_bytes
    from attnbench.verdict.diff import SAME_WITHIN, diff

    asked = {name: path for name in ("md", "json") if (path := getattr(args, name)) is not None}
    if list(asked.values()).count("-") > 1:
        raise UsageError(refusal(WHO, "--json", "-", "wants stdout, as --md does", "one of them"))
    for path in asked.values():
        if path != "-":
            check_writable(path)
    within = _percent("--same-within", args.same_within)
    limit = _percent("--fail-over", args.fail_over)
    across, references = _across(args.across), _names("--reference", args.reference)
    sides = _sides((args.a, args.b), args.out)
    found = diff(*sides, references=() if references == [NO_REFERENCE] else references, across=across,
                 same_within=SAME_WITHIN if within is None else within)
    texts = {name: markdown(found) if name == "md" else to_json(found) for name in asked}
    for name, path in asked.items():
        if path != "-":
            write_bytes(path, texts[name].encode())
    output = Output(results_to_stderr="-" in asked.values())
    render_diff(found, output.console(), everything=args.all)
    for name, path in asked.items():
        if path == "-":
            Output().line(texts[name].rstrip("\n"))
    return _exit_code(found, limit, output)


def _exit_code(found: Diff, limit: float | None, output: Output) -> int:
    if limit is None:
        return 0
    if not found.changes:
        output.note(f"{WHO}: no row has a time in both, so none was held against --fail-over")
    slower, lost = found.slower_than(limit), found.regressions()
    if not slower and not lost:
        return 0
    words = [f"{len(slower)} slower by more than {100 * limit:g} %"] if slower else []
    words += [f"{len(lost)} lost"] if lost else []
    output.note(f"{WHO}: {', '.join(words)}; exit 1")
    return 1


def _sides(texts: Sequence[str], folder: str) -> list[list[Run]]:
    """The runs of each side; a run that counted twice would seem more certain than it is.

    Raises:
        UsageError: a run cannot be read, or is named twice.
    """
    seen: dict[str, Path] = {}
    sides: list[list[Run]] = []
    for text in texts:
        sides.append([])
        # A comma may also be part of a file's name.
        for name in [text] if is_file(text) else _names("RUN", text) or []:
            path, run = read_run(name, folder, WHO, statistics=False)
            if run.id in seen:
                raise UsageError(refusal(WHO, "RUN", path, f"is run {run.id}, as {seen[run.id]} is", "each run once"))
            seen[run.id] = path
            sides[-1].append(run)
    return sides


def _names(flag: str, text: str | None) -> list[str] | None:
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UsageError(refusal(WHO, flag, text, "names nothing", "names with commas between"))
    return names


def _across(text: str | None) -> list[str]:
    from attnbench.verdict.sides import ACROSS

    names = _names("--across", text) or []
    for name in names:
        if name not in ACROSS:
            raise unknown(WHO, "--across", name, ACROSS)
    return names


def _percent(flag: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        value = math.nan
    if not 0.0 <= value < 1000.0:
        raise UsageError(refusal(WHO, flag, text, "is no share", "a number of per cent, 0 or more"))
    return value / 100.0
