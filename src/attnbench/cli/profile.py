"""`attnbench profile`: run ncu, nsys or torch.profiler on the launches of a suite, or read earlier captures."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnbench.cli import flags
from attnbench.cli.executors import add_no_wait
from attnbench.cli.output import Output
from attnbench.cli.parser import Parser
from attnbench.cli.request import make_run
from attnbench.errors import UsageError, parsed, refusal, unknown
from attnbench.suites.settings import SETTINGS, between, whole

if TYPE_CHECKING:
    from attnbench.profile.capture import Capture
    from attnbench.profile.categories import Categories
    from attnbench.profile.roofline import Point
    from attnbench.profile.take import Options

WHO = "attnbench profile"
TOOLS = ("ncu", "nsys", "torch", "all")
SUITES = {"all": "minimal"}
SUITE = "compare"
INSTEAD = {"hstu-serving": "compare-hstu-serving"}
"""Suites that sweep a whole model, and the suite with the one case that is profiled: 8 users, 1024 candidates each."""
RANGES = {"compare-hstu-serving": "embedding,projection,attention"}
"""Default ranges of ncu, which replays each kernel many times: three operators of a step instead of all its kernels."""
RUNS = "results"
"""Folder in which --into looks up the id of a run."""

WARMUP, TIMEOUT_S = 3, 600.0
CHOICES = {"set": ("basic", "roofline", "full"), "clock_control": ("none", "base"), "cache_control": ("all", "none")}
LAYOUTS = ("seed-002",)
TABLES = ("all", "kernels", "categories", "counters", "seed-003")


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "tool",
        nargs="?",
        metavar="TOOL",
        help=(
            "ncu (counters of each kernel), nsys (time line), torch (torch.profiler), or all (each of them and two "
            "benchmarks, into one folder with SUMMARY.md)"
        ),
    )
    parser.add_argument(
        "suite",
        nargs="?",
        metavar="SUITE|FILE.toml",
        help=("suite whose cases and backends are launched (default: compare; for all: minimal, its first case)"),
    )
    _add_capture(parser)
    flags.add_shape(
        parser,
        note=(
            "Each a value or a comma list; each case is captured separately. Defaults apply unless the suite sets a "
            "value; the suites minimal and compare also read the environment variables BATCH, SEQLEN, NHEADS, HEADDIM."
        ),
    )
    flags.add_backends(parser, baseline=False)
    _add_output(parser)
    parser.set_defaults(gpus=None, shard=None, engine=None, address=None)
    parser.show_first(
        "--from",
        "--kernel",
        "--range",
        "--set",
        "--device",
        *flags.USUAL_SHAPE,
        "--backends",
        "--skip",
        "--out",
        "--table",
        "--verbose",
        "--csv",
        "--json",
        "--plots",
        "--dry-run",
    )
    parser.example(
        "attnbench profile torch --seqlen 4096 --backends 'sdpa-*'",
        "attnbench profile ncu --set full --kernel flash",
        "BATCH=4 SEQLEN=2048 attnbench profile all",
        "attnbench profile --from fa.sqlite --from sage2.sqlite --table seed-003",
    )


def _add_capture(parser: Parser) -> None:
    group = parser.add_argument_group("capture", "Every backend is launched in a process of its own.")
    group.add_argument(
        "--from",
        dest="captures",
        action="append",
        metavar="CAPTURE",
        help=(
            "read a capture instead of taking one: .ncu-rep, ncu's CSV, nsys's SQLite or stats, a torch trace; repeat "
            "for more columns (default: take one)"
        ),
    )
    group.add_argument("--kernel", metavar="REGEX", help="only kernels whose name matches (default: all)")
    group.add_argument(
        "--range",
        metavar="NAME",
        help=(
            "only work launched in one of these NVTX ranges, separated by commas (default: all; ncu of hstu-serving: "
            "embedding, projection and attention)"
        ),
    )
    group.add_argument(
        "--set",
        metavar="NAME",
        help=("what ncu collects: basic, roofline or full (default: basic; roofline with --layout seed-002)"),
    )
    group.add_argument(
        "--launches",
        metavar="N",
        help=("launches in the capture window (default: 1 for ncu, which replays it; else 10)"),
    )
    group.add_argument(
        "--warmup", dest="warm_launches", metavar="N", help=(f"launches before the window (default: {WARMUP})")
    )
    group.add_argument(
        "--whole",
        action="store_true",
        help="for video: a whole generation, in the range Inference, instead of single steps",
    )
    group.add_argument(
        "--clock-control",
        metavar="NAME",
        default="none",
        help=("for ncu: none leaves the clocks unlocked, base locks the base clock (default: none)"),
    )
    group.add_argument(
        "--cache-control",
        metavar="NAME",
        default="all",
        help=("for ncu: all flushes the caches before each of its passes, none does not (default: all)"),
    )
    group.add_argument("--timeout", metavar="S", help=f"time limit of one capture (default: {TIMEOUT_S:g})")
    for one in SETTINGS:
        if one.name in ("input", "seed", "device"):
            group.add_argument(one.flag, metavar=one.metavar, help=f"{one.help} (default: {one.default})")
    add_no_wait(group)


def _add_output(parser: Parser) -> None:
    group = parser.add_argument_group("output", "A path, or - for stdout (the tables then move to stderr).")
    group.add_argument(
        "-o",
        "--out",
        metavar="DIR",
        default="profile_results",
        help=("folder of captures; numbered if it exists (default: profile_results)"),
    )
    group.add_argument(
        "--layout",
        metavar="NAME",
        help=(
            "file names of an older script: seed-002, for ncu and nsys on hstu-serving, one capture per operator "
            "(default: profile_BACKEND)"
        ),
    )
    group.add_argument("--force", action="store_true", help="write into an existing folder, and overwrite its files")
    group.add_argument("--categories", metavar="FILE.toml", help="rules of kernel categories before the shipped ones")
    group.add_argument("--table", metavar="NAME", default="all", help=f"one of {', '.join(TABLES)} (default: all)")
    group.add_argument("-v", "--verbose", action="store_true", help="all text of ncu's rules, not one line of each")
    group.add_argument("--csv", metavar="PATH", help="every kernel with every counter (default: kernels.csv in DIR)")
    group.add_argument("--json", metavar="PATH", help="the captures (default: captures.json in DIR)")
    group.add_argument(
        "--into",
        metavar="RUN",
        help=(
            "add ncu's counters, or a launch's time by category, to the records of this run file with the same case "
            "and backend (default: none)"
        ),
    )
    group.add_argument(
        "--plots", metavar="DIR", help="draw time by category, a stacked bar per capture, as PNG, SVG (default: none)"
    )
    group.add_argument("--dry-run", action="store_true", help="show the command lines without running them")


def run(args: argparse.Namespace) -> int:
    """Take or read captures and show them; return 3 if there is none."""
    from attnbench.profile import categories

    _check(args)
    rules = categories.load(args.categories)
    if args.captures:
        return _show_earlier(args, rules)
    if args.tool is None:
        raise UsageError(f"{WHO}: TOOL is missing; one of {', '.join(TOOLS)}, or --from CAPTURE")
    from attnbench.cli import capturing

    suite = args.suite or SUITES.get(args.tool, SUITE)
    suite = INSTEAD.get(suite, suite)
    if args.tool == "ncu" and args.range is None and args.kernel is None and args.layout is None:
        args.range = RANGES.get(suite)
    planned = make_run(args, "profile", suite=suite)
    plan = capturing.Plan(
        args,
        planned,
        suite,
        options(args),
        launches=_number(args.launches, "--launches", 1),
        warmup=WARMUP if args.warm_launches is None else int(args.warm_launches),
        whole=args.whole,
    )
    taken = capturing.everything(plan, rules) if args.tool == "all" else capturing.one_tool(plan, rules)
    if taken is None:
        return 0
    show(args, _selected(taken.captures, args, taken=True), taken.points, taken.losses)
    Output(results_to_stderr="-" in (args.csv, args.json)).line(f"written: {taken.place}")
    return 0


def _check(args: argparse.Namespace) -> None:
    """Check the flags before importing or starting anything."""
    from attnbench.store.files import check_writable

    if args.tool is not None and args.tool not in TOOLS:
        raise unknown(WHO, "TOOL", args.tool, TOOLS)
    if args.layout not in (None, *LAYOUTS):
        raise unknown(WHO, "--layout", args.layout, LAYOUTS)
    if args.layout is not None and args.tool == "all":
        words = refusal(WHO, "--layout", args.layout, "has no names for captures of all", "nsys or ncu")
        raise UsageError(words)
    if args.layout is not None and args.captures:
        raise UsageError(refusal(WHO, "--layout", args.layout, "names captures that are taken", "without --from"))
    if args.captures and args.suite is not None:
        raise UsageError(
            refusal(WHO, "SUITE", args.suite, "is not launched where --from reads a capture", "one of the two")
        )
    if args.set is None:
        args.set = "roofline" if args.layout else "basic"
    for name, accepted in (*CHOICES.items(), ("table", TABLES)):
        if getattr(args, name) not in accepted:
            raise unknown(WHO, f"--{name.replace('_', '-')}", getattr(args, name), accepted)
    if args.kernel is not None:
        try:
            re.compile(args.kernel)
        except re.error as error:
            raise UsageError(
                refusal(WHO, "--kernel", args.kernel, f"is no regular expression ({error})", "one such as flash|fmha")
            ) from None
    if args.csv == "-" == args.json:
        raise UsageError(refusal(WHO, "--json", "-", "wants stdout, as --csv does", "one of them"))
    for path in (args.csv, args.json):
        if path not in (None, "-"):
            check_writable(path)
    if args.plots is not None:
        from attnbench.report.plots import check_plot_folder

        check_plot_folder(WHO, args.plots)
    _number(args.launches, "--launches", 1)
    _number(args.warm_launches, "--warmup", 0)
    _seconds(args.timeout)
    if args.into is not None:
        from attnbench.store.runfile import read
        from attnbench.store.saved import find_run

        path = find_run(args.into, RUNS, WHO)
        read(path)
        check_writable(path)


def _number(text: str | None, flag: str, least: int) -> int | None:
    return None if text is None else parsed(WHO, flag, text, whole(least))


def _seconds(text: str | None) -> float:
    return TIMEOUT_S if text is None else parsed(WHO, "--timeout", text, between(0))


def options(args: argparse.Namespace) -> Options:
    """Return the options of the flags."""
    from attnbench.profile.take import Options

    return Options(
        kernel=args.kernel,
        range=args.range,
        set=args.set,
        clock_control=args.clock_control,
        cache_control=args.cache_control,
        timeout_s=_seconds(args.timeout),
        force=args.force,
    )


# ── captures taken earlier ─────────────────────────────────────────────────────────────────────────


def _show_earlier(args: argparse.Namespace, rules: Categories) -> int:
    from attnbench.profile import sources

    captures = [capture for path in args.captures for capture in sources.read(path, rules)]
    for capture in captures:
        if args.tool not in (None, "all", capture.tool):
            raise UsageError(
                refusal(
                    WHO,
                    "--from",
                    capture.source,
                    f"is a capture of {capture.tool}",
                    f"`{WHO} {capture.tool}`, or no tool",
                )
            )
    show(args, _named_apart(_selected(captures, args)), [], [])
    return 0


def _named_apart(captures: Sequence[Capture]) -> list[Capture]:
    """Return the captures with numbers added to equal names."""
    seen: dict[str, int] = {}
    named = []
    for capture in captures:
        seen[capture.name] = count = seen.get(capture.name, 0) + 1
        named.append(dataclasses.replace(capture, name=f"{capture.name}-{count}") if count > 1 else capture)
    return named


def _selected(captures: Sequence[Capture], args: argparse.Namespace, *, taken: bool = False) -> list[Capture]:
    """Return the captures with the kernels selected by --kernel and --range; ncu has selected them if `taken`.

    Raises:
        UsageError: no capture has such a kernel; if only some have one, the others are noted.
    """
    found, without = [], []
    for capture in captures:
        kept = (
            capture.kernels
            if taken and capture.tool == "ncu"
            else tuple(
                row
                for row in capture.kernels
                if (args.kernel is None or re.search(args.kernel, row.name))
                and (args.range is None or {*args.range.split(","), args.range} & {*row.within, row.range})
            )
        )
        if kept or not capture.kernels:
            found.append(dataclasses.replace(capture, kernels=kept))
        else:
            without.append(capture)
    if without:
        by_name = args.kernel is not None
        flag, value = ("--kernel", args.kernel) if by_name else ("--range", args.range)
        rows = [row for capture in without for row in capture.kernels]
        there = dict.fromkeys(
            name for row in rows for name in ((row.short,) if by_name else (*row.within, row.range or "none"))
        )
        words = refusal(
            WHO,
            flag,
            value,
            f"leaves no kernel of {', '.join(one.source for one in without)}",
            f"among {', '.join(list(there)[:8])}",
        )
        if not found:
            raise UsageError(words)
        Output().note(words)
    return found


def show(args: argparse.Namespace, captures: Sequence[Capture], points: Sequence[Point], losses: Sequence[str]) -> None:
    """Print the tables and the losses, and write the requested outputs."""
    from attnbench.profile import capture, tables
    from attnbench.report.profile import render_profile_table
    from attnbench.store.files import write_text

    texts = {"csv": tables.to_csv(captures), "json": capture.dumps(tuple(captures))}
    if args.into is not None:
        _into(args, captures)
    if args.plots is not None:
        _plots(args, captures)
    for name, text in texts.items():
        if (path := getattr(args, name)) not in (None, "-"):
            write_text(path, text)
    output = Output(results_to_stderr="-" in (args.csv, args.json))
    shown = tables.chosen(args.table, captures, points, whole=args.verbose)
    for table in shown:
        render_profile_table(
            output.console(),
            table.title,
            table.heads,
            table.texts(),
            numbers=table.numbers(),
            ranks=table.ranks,
            notes=table.notes,
        )
    for loss in losses:
        output.note(f"not captured: {loss}")
    if not shown:
        output.note(f"--table {args.table}: the captures hold nothing for it")
    for name, text in texts.items():
        if getattr(args, name) == "-":
            Output().line(text.rstrip("\n"))


def _plots(args: argparse.Namespace, captures: Sequence[Capture]) -> None:
    """Draw the time of the captures by category."""
    from attnbench.profile.tables import by_category
    from attnbench.report.charts.base.stacks import stacks
    from attnbench.report.plots import draw

    bars = {capture.name: times for capture in captures if (times := by_category(capture))}
    if not bars:
        raise UsageError(
            refusal(WHO, "--plots", args.plots, "would stay empty, no kernel was timed", "a capture with times")
        )
    whole = all(row.name != "Inference" for capture in captures for row in capture.ranges)
    figure = stacks("categories", "Time by category of kernels", "capture" if whole else "generation", bars)
    paths = draw([figure], args.plots)
    Output().note(f"--plots: {', '.join(path.name for path in paths)}")


def _into(args: argparse.Namespace, captures: Sequence[Capture]) -> None:
    """Add the counters to the records of a run file."""
    from attnbench.profile.attach import attach
    from attnbench.store.runfile import read, write
    from attnbench.store.saved import find_run

    path = find_run(args.into, RUNS, WHO)
    run, rows = attach(read(path), captures)
    if not rows:
        raise UsageError(
            refusal(
                WHO,
                "--into",
                args.into,
                "has no record of a case and backend that was captured, of launches",
                "a run of the same cases",
            )
        )
    write(run, path)
    Output().note(f"--into: counters of {rows} record{'s' * (rows != 1)}")
