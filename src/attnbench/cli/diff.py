"""`attnbench diff`: compare two runs, with a verdict for every row of both."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.cli.output import Output
from attnbench.cli.parser import Parser
from attnbench.errors import RunFileError, UsageError, parsed, refusal, unknown
from attnbench.record import Run
from attnbench.store.files import is_file
from attnbench.store.saved import read_run

if TYPE_CHECKING:
    from attnbench.verdict.change import Diff

WHO = "attnbench diff"
NO_REFERENCE = "none"


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "a",
        metavar="A",
        help=(
            "run file, the id of a run in --out or in the history, latest or previous, or a file that `attnbench import` "
            "reads; several, separated by commas, count as processes of the same code"
        ),
    )
    parser.add_argument("b", metavar="B", help="the same for the other side")
    group = parser.add_argument_group("judging")
    group.add_argument(
        "--reference",
        metavar="NAMES",
        help=(
            "what did not change: rows are judged by their ratio to these backends, or to `yardsticks`; none: by their "
            "own times (default: the backends with one version and source in A and B, and the yardsticks)"
        ),
    )
    group.add_argument("--same-within", metavar="PERCENT", help="the change that `same` rules out (default: 3)")
    group.add_argument(
        "--fail-over",
        metavar="PERCENT",
        help=(
            "exit 1 only for slow-downs by more than this, of a row or of all rows together (default: any row that is "
            "`slower`, all rows together by more than --same-within); a row that passed in A and in B is wrong, out of "
            "memory, over time, crashed or failed always counts"
        ),
    )
    group.add_argument(
        "--machine-may-move",
        action="store_true",
        help=("a shift of all rows counts only if the yardsticks show that the code caused it"),
    )
    group.add_argument("--exit-zero", action="store_true", help="exit 0 whatever the result")
    group.add_argument(
        "--across",
        metavar="NAMES",
        help=(
            "compare although these differ: timer, l2, regime, card, input (default: refuse), gpu (default: no verdict "
            "for rows measured on another GPU)"
        ),
    )
    group = parser.add_argument_group("output", "A path, or - for stdout (the table then moves to stderr).")
    group.add_argument("--md", metavar="PATH", help="Markdown for a pull request")
    group.add_argument("--json", metavar="PATH", help="everything, as JSON")
    group.add_argument("--all", action="store_true", help="list all rows that are the same")
    group.add_argument("-o", "--out", metavar="DIR", default="results", help="folder of run files (default: results)")
    from attnbench.report.diff import LEGEND

    parser.example(
        "attnbench diff previous latest",
        "attnbench diff 1a2b3c4d 5e6f7a8b",
        "attnbench diff before.json after.json --fail-over 3 --md diff.md",
        "attnbench diff old-1.json,old-2.json new-1.json,new-2.json",
        "attnbench diff baseline.txt current.txt --exit-zero",
        remark=f"{LEGEND} Exit codes: 0 nothing is worse, 1 something is, 3 nothing could be judged.",
    )


def run(args: argparse.Namespace) -> int:
    """Compare; return 1 if something is worse, 3 if nothing could be judged."""
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
    found = diff(
        *sides,
        references=() if references == [NO_REFERENCE] else references,
        across=across,
        same_within=SAME_WITHIN if within is None else within,
    )
    texts = {name: markdown(found) if name == "md" else to_json(found) for name in asked}
    for name, path in asked.items():
        if path != "-":
            write_bytes(path, texts[name].encode())
    output = Output(results_to_stderr="-" in asked.values())
    render_diff(found, output.console(), everything=args.all)
    for name, path in asked.items():
        if path == "-":
            Output().line(texts[name].rstrip("\n"))
    return 0 if args.exit_zero else _exit_code(found, limit, args.machine_may_move, output)


def _exit_code(found: Diff, limit: float | None, machine_may_move: bool, output: Output) -> int:
    slower, lost = found.slower_than(limit or 0.0), found.regressions()
    most = found.same_within if limit is None else limit
    beyond = f" by more than {100 * limit:g} %" if limit else ""
    words = [f"{len(slower)} slower{beyond}"] if slower else []
    if found.is_slower_throughout(most, machine_may_move=machine_may_move):
        words.append(f"all rows slower by more than {100 * most:g} %")
    words += [f"{len(lost)} lost"] if lost else []
    if words:
        output.note(f"{WHO}: {', '.join(words)}; exit 1")
        return 1
    if found.has_judged:
        return 0
    why = (
        "every row is unclear; more samples (--max-seconds) or --replicates 3 may tell"
        if found.changes
        else "no row has a time in both"
    )
    if found.elsewhere and not found.changes:
        why = "another GPU measured every row in B; --across gpu judges them all the same"
    output.note(f"{WHO}: nothing could be judged: {why}; exit 3")
    return 3


def _sides(texts: Sequence[str], folder: str) -> list[list[Run]]:
    """Return the runs of each side; a run named twice is refused, as it would make the result seem more certain.

    Raises:
        UsageError: a run cannot be read, or is named twice.
    """
    seen: dict[str, Path] = {}
    sides: list[list[Run]] = []
    for text in texts:
        sides.append([])
        # A file name may contain a comma.
        for name in [text] if is_file(text) else _names("RUN", text) or []:
            path, run = _read(name, folder)
            place = str(path.resolve())  # an import gets a new id each time
            if run.id in seen or place in seen:
                first = seen.get(run.id, path)
                raise UsageError(refusal(WHO, "RUN", path, f"is run {run.id}, as {first} is", "each run once"))
            seen[run.id] = seen[place] = path
            sides[-1].append(run)
    return sides


def _read(name: str, folder: str) -> tuple[Path, Run]:
    """Read a run, or a file of a seed's layout.

    Raises:
        UsageError: there is no such run or file.
        RunFileError: it cannot be read as either.
    """
    from attnbench.formats.layouts import layout_names, load_layout

    try:
        return read_run(name, folder, WHO, statistics=False)
    except RunFileError:
        for layout in map(load_layout, layout_names()):
            if layout.recognises(Path(name)):
                return Path(name), layout.read(name)
        raise


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


def _share(text: str) -> float:
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        value = math.nan
    if not 0.0 <= value < 1000.0:
        raise ValueError("a number of per cent, 0 or more")
    return value


def _percent(flag: str, text: str | None) -> float | None:
    if text is None:
        return None
    value = parsed(WHO, flag, text, _share)
    return value / 100.0
