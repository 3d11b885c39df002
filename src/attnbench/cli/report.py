"""`attnbench report`: write runs as one HTML page, and their charts as images."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from attnbench.cli.output import Output
from attnbench.cli.parser import Parser
from attnbench.errors import UsageError, refusal
from attnbench.record import Run
from attnbench.store.load_file import LoadRun
from attnbench.store.saved import read_load, read_run

WHO = "attnbench report"
STDOUT = "-"


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    from attnbench.report.plots import add_plot_arguments

    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN...",
        help=(
            "run files, ids of runs in --out or in the history, latest or previous; several share one page, each "
            "compared with the first, with their rows joined"
        ),
    )
    group = parser.add_argument_group("output")
    group.add_argument(
        "--html",
        metavar="PATH",
        help=(
            "the page, in one file that opens offline; - for stdout (default: beside the first run file, "
            "unless another output is requested)"
        ),
    )
    add_plot_arguments(group)
    group.add_argument("-o", "--out", metavar="DIR", default="results", help="folder of run files (default: results)")
    parser.example(
        "attnbench report latest",
        "attnbench report results/sweep.json --html sweep.html --plots plots",
        "attnbench report before.json after.json --html both.html",
    )


def run(args: argparse.Namespace) -> int:
    """Read the runs, then write the requested outputs."""
    from attnbench.report.html import page, ready
    from attnbench.report.plots import check_plot_arguments, write_plots
    from attnbench.store.files import check_writable, write_bytes, write_stdout

    check_plot_arguments(WHO, args)
    for name in args.runs:
        if (load := read_load(name, args.out, WHO)) is not None:
            if len(args.runs) > 1:
                raise UsageError(refusal(WHO, "RUN", name, "is the result of a load", "one load alone, or runs"))
            return _of_load(args, *load)
    ready()
    if args.html not in (None, STDOUT):
        check_writable(args.html)
    paths, runs = _read(args.runs, args.out)
    target = args.html
    if target is None and args.plots is None:
        target = str(_beside(paths))
        check_writable(target)
    written = []
    if target is not None:
        text = page(runs).encode("utf-8", "replace")
        if target == STDOUT:
            write_stdout(text)
        else:
            write_bytes(target, text)
            written.append(target)
    if args.plots is not None:
        files = write_plots(runs, args.plots, x=args.x, metric=args.metric)
        written.append(f"{len(files)} files in {args.plots}")
    if written:
        Output(results_to_stderr=target == STDOUT).line(f"written: {', '.join(written)}")
    return 0


def _of_load(args: argparse.Namespace, path: Path, load: LoadRun) -> int:
    """Write the page of a load, and its chart."""
    from attnbench.report.load_chart import write_chart
    from attnbench.report.load_page import page
    from attnbench.store.files import check_writable, write_bytes, write_stdout

    for flag in ("x", "metric"):
        if getattr(args, flag) is not None:
            raise UsageError(
                refusal(
                    WHO,
                    f"--{flag}",
                    getattr(args, flag),
                    "does not go with the result of a load",
                    "latency over rate is drawn",
                )
            )
    target = args.html
    if target is None and args.plots is None:
        target = str(_beside([path]))
    written = []
    if target is not None:
        if target != STDOUT:
            check_writable(target)
        text = page(load).encode("utf-8", "replace")
        if target == STDOUT:
            write_stdout(text)
        else:
            write_bytes(target, text)
            written.append(target)
    if args.plots is not None:
        written += [str(file) for file in write_chart(load, args.plots)]
    if written:
        Output(results_to_stderr=target == STDOUT).line(f"written: {', '.join(written)}")
    return 0


def _beside(paths: Sequence[Path]) -> Path:
    """Return the default path of the page: named after the first run and the number of others."""
    more = f"-and-{len(paths) - 1}-more" if len(paths) > 1 else ""
    return paths[0].with_name(f"{paths[0].stem}{more}.html")


def _read(names: Sequence[str], folder: str) -> tuple[list[Path], list[Run]]:
    """Return the runs and the paths of their files; a run named twice is refused.

    Raises:
        UsageError: a run cannot be read, or two names mean the same run.
    """
    found: dict[str, tuple[Path, Run]] = {}
    for name in names:
        path, run = read_run(name, folder, WHO)
        if run.id in found:
            first = found[run.id][0]
            raise UsageError(refusal(WHO, "RUN", path, f"is run {run.id}, as {first} is", "each run once"))
        found[run.id] = (path, run)
    return [path for path, _ in found.values()], [run for _, run in found.values()]
