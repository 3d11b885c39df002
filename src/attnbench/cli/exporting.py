"""`attnbench export`: write a run in another format, or in the layout of an older script (a seed)."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING

from attnbench.cli import flags
from attnbench.cli.output import Output
from attnbench.cli.parser import Parser
from attnbench.errors import UsageError, refusal, unknown
from attnbench.presentation.block import backend_name
from attnbench.record import Run
from attnbench.store.saved import read_run
from attnbench.text import spelled

if TYPE_CHECKING:
    from attnbench.formats.layouts.base import Layout

WHO = "attnbench export"


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "source", metavar="RUN", help=("a run file, the id of one in --out or in the history, latest or previous")
    )
    group = parser.add_argument_group("output", "A path, or - for stdout.")
    flags.add_exports(group)
    group.add_argument(
        "--backends",
        metavar="LIST",
        action="append",
        help="only rows of these backends, by their names in the run (default: all)",
    )
    group.add_argument("--by", metavar="AXIS", help="one file for each value of this axis (default: one file)")
    group.add_argument(
        "--layout",
        metavar="NAME",
        help=("the format of an older script (`attnbench list layouts`), not attnbench's own rows (default: none)"),
    )
    group.add_argument("--to", metavar="PATH", help="file or folder for --layout (default: -, print it)")
    group.add_argument("-o", "--out", metavar="DIR", default="results", help="folder of run files (default: results)")
    parser.example(
        "attnbench export latest --csv rows.csv --xlsx rows.xlsx",
        "attnbench export results/sweep.json --csv sweep.csv --by dtype",
        "attnbench export 1a2b3c4d --layout seed-001 --to sweep.csv",
        "attnbench export latest --layout seed-002 --backends serving-paged",
    )


def run(args: argparse.Namespace) -> int:
    """Read the run, then write the requested outputs."""
    from attnbench.cli.formats import format_names, write_format
    from attnbench.formats.layouts import load_layout

    asked = flags.exports(args, WHO)
    if args.layout is not None:
        target = _layout_target(args, asked)
        layout = load_layout(args.layout)
        return _write_layout(_read(args), layout, target)
    if not asked or args.to is not None:
        wrong = "there is no output" if args.to is None else "--to goes with --layout"
        accepted = ", ".join(f"--{name} PATH" for name in format_names())
        raise UsageError(f"{WHO}: {wrong}; {accepted}, or --layout NAME [--to PATH]")
    flags.check_exports(asked, args.by)
    found = _read(args)
    written = [path for name, target in asked.items() for path in write_format(found, name, target, args.by)]
    if written:
        Output(results_to_stderr="-" in asked.values()).line(f"written: {', '.join(map(str, written))}")
    return 0


def _read(args: argparse.Namespace) -> Run:
    """Return the requested run, reduced to the requested rows.

    Raises:
        UsageError: the run has no such backend.
    """
    found = read_run(args.source, args.out, WHO)[1]
    wanted = flags.selector_words("--backends", args.backends)
    names = dict.fromkeys(map(backend_name, found.records))
    for name in wanted:
        if name not in names:
            raise unknown(WHO, "--backends", name, names)
    kept = tuple(record for record in found.records if not wanted or backend_name(record) in wanted)
    return dataclasses.replace(found, records=kept)


def _layout_target(args: argparse.Namespace, asked: dict[str, str]) -> str:
    """Return the target of a layout: --to, or the path of the one format flag given with it."""
    from attnbench.cli.formats import load_format

    targets = [*asked.values(), *([args.to] if args.to is not None else [])]
    if len(targets) > 1:
        raise UsageError(refusal(WHO, "--layout", args.layout, f"has one place, not {len(targets)}", "--to PATH"))
    if args.by is not None:
        raise UsageError(
            refusal(
                WHO,
                "--by",
                args.by,
                f"does not go with --layout {args.layout}",
                "a layout takes a run apart as its script did",
            )
        )
    for name in asked:
        if not load_format(name).text:
            raise UsageError(refusal(WHO, "--layout", args.layout, f"is no {name}", "--to PATH"))
    return targets[0] if targets else "-"


def _write_layout(found: Run, layout: Layout, target: str) -> int:
    output = Output()
    if target == "-":
        text = layout.console(found)
        if text is None:
            raise UsageError(refusal(WHO, "--layout", layout.name, "prints nothing", "--to PATH"))
        output.line(text.rstrip("\n"))
    else:
        written = layout.write(found, target)
        output.line(f"written: {', '.join(map(str, written))}")
        if left := layout.left_there(target, written):
            output.note(f"{layout.name}: still there, of another run: {', '.join(spelled(str(path)) for path in left)}")
    for note in layout.notes(found):
        output.note(note)
    return 0
