"""`attnbench import`: convert a file of a seed to a run file."""

from __future__ import annotations

import argparse

from attnbench.cli import flags
from attnbench.cli.output import Output
from attnbench.cli.parser import Parser
from attnbench.text import spelled

WHO = "attnbench import"


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    parser.add_argument("source", metavar="PATH", help="a file or folder written by an older script")
    parser.add_argument(
        "--layout",
        metavar="NAME",
        help=("its format, of `attnbench list layouts` (default: detected from its content)"),
    )
    group = parser.add_argument_group("output", "A path, or - for stdout.")
    flags.add_exports(group)
    group.add_argument(
        "--save", action=argparse.BooleanOptionalAction, default=True, help="keep the run file (default: kept)"
    )
    group.add_argument("-o", "--out", metavar="DIR", default="results", help="folder of run files (default: results)")
    parser.example("attnbench import sweep.csv", "attnbench import results.json --layout seed-004 --md -")


def run(args: argparse.Namespace) -> int:
    """Read the file, write the run."""
    from attnbench.cli.formats import write_format
    from attnbench.formats.layouts import load_layout, recognise
    from attnbench.store.files import check_writable
    from attnbench.store.history.writing import keep
    from attnbench.store.runfile import default_path, write

    asked = flags.exports(args, WHO)
    flags.check_exports(asked)
    output = Output(results_to_stderr="-" in asked.values())
    layout = load_layout(args.layout) if args.layout is not None else recognise(args.source)
    found = layout.read(args.source)
    written, missed = [], None
    if args.save:
        path = default_path(found, args.out)
        check_writable(path)
        written.append(str(write(found, path)))
        missed = keep(path)
    for name, target in asked.items():
        write_format(found, name, target)
        written += [target] if target != "-" else []
    rows = f"{len(found.records)} row{'s' * (len(found.records) != 1)}"
    output.line(f"{layout.name}: {rows}" + (f", written: {', '.join(written)}" if written else ""))
    if strange := layout.passed_over(args.source):
        output.note(f"{layout.name}: passed over: {', '.join(map(spelled, strange))}")
    if missed is not None:
        output.note(missed)
    return 0
