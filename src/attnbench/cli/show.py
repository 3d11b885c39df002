"""`attnbench show`: print the tables of an earlier run."""

from __future__ import annotations

import argparse

from attnbench.cli import flags
from attnbench.cli.output import Output
from attnbench.cli.parser import Parser
from attnbench.store.saved import read_load, read_run

WHO = "attnbench show"
LATEST = "latest"


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "source",
        nargs="?",
        default=LATEST,
        metavar="RUN",
        help=(
            "a run file or the result of a load, the id of one in --out or in the history, latest or previous "
            "(default: latest)"
        ),
    )
    flags.add_view(parser, layout=False)
    parser.add_argument("--out", metavar="DIR", default="results", help="folder of run files (default: results)")
    parser.example(
        "attnbench show",
        "attnbench show previous --columns median,speedup,tflops",
        "attnbench show 1a2b3c4d --columns all --sort memory",
    )


def run(args: argparse.Namespace) -> int:
    """Print what the run printed when it was measured."""
    from attnbench.report.checks import render_check
    from attnbench.report.load import render_load
    from attnbench.report.table import render_run

    view = flags.view_of(args, WHO)
    if (load := read_load(args.source, args.out, WHO)) is not None:
        render_load(load[1], Output().console())
        return 0
    found = read_run(args.source, args.out, WHO)[1]
    console = Output().console()
    if found.settings.measure:
        render_run(found, console, view)
    else:
        render_check(found, console)
    return 0
