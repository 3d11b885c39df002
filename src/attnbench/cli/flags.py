"""Flags that several verbs share, generated from their sources.

Shape flags come from the axes of the workloads, measuring flags from `suites.settings`, output flags from the formats,
so a new axis, setting or exporter gets its flag without a change here.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.cli.parser import BooleanAxis, Parser
from attnbench.errors import UsageError, names_nothing, refusal, unknown
from attnbench.suites.settings import SETTINGS
from attnbench.workloads.base import Axis, load_workload, workload_names

if TYPE_CHECKING:
    from attnbench.presentation.columns import View

AXIS = "axis_"
"""Prefix of the attributes that hold shape flags, as the user typed them."""

FIRST = "attention"
"""The default workload of a shape."""

CHECK_SETTINGS = ("timeout", "input", "seed", "device")
"""The settings of a check: the others concern timing."""


USUAL_SHAPE = ("--batch", "--seqlen", "--nheads", "--headdim", "--causal", "--dtype", "--mode")
USUAL = (
    *USUAL_SHAPE,
    "--backends",
    "--skip",
    "--baseline",
    "--iterations",
    "--max-seconds",
    "--timer",
    "--device",
    "--gpus",
    "--replicates",
    "--resume",
    "--csv",
    "--json",
    "--md",
    "--html",
    "--out",
    "--dry-run",
    "--quiet",
    "--verbose",
)
"""Flags shown in the short help of run, compare and check."""


def usual_of(words: Sequence[str]) -> tuple[str, ...]:
    """Return the flags of the short help if the words name a shipped suite of another workload: all of its axes."""
    from attnbench.suites.load import load_suite, suite_names

    suite = next((word for word in words if word in suite_names()), None)
    workload = FIRST if suite is None else load_suite(suite, "cpu").workload
    if workload == FIRST:
        return ()
    axes = [f"--{_dashed(axis.name)}" for axis in load_workload(workload).axes]
    return (*axes, *(flag for flag in USUAL if flag not in USUAL_SHAPE))


def add_shape(parser: Parser, *, note: str) -> None:
    """Add a flag for every axis of every workload; `note` tells where defaults come from."""
    helps: dict[str, str] = {}
    for name in workload_names():
        workload = load_workload(name)
        words = [note] if not helps else ["In addition to the shared flags above."]
        # A shared flag is declared once; if it means more for this workload, this group says so.
        words += [
            f"--{_dashed(axis.name)}: {axis.help}."
            for axis in workload.axes
            if helps.get(axis.name, axis.help) != axis.help
        ]
        group = parser.add_argument_group(f"shape ({workload.title})", _escaped(" ".join(words)))
        if not helps:
            group.add_argument("--no-grad", action="store_true", help="the same as --mode fwd")
        for axis in workload.axes:
            if axis.name not in helps:
                _add_axis(group, axis)
        helps = {axis.name: axis.help for axis in workload.axes} | helps


def _add_axis(group: argparse._ArgumentGroup, axis: Axis) -> None:
    names = [axis.name, *axis.aliases]
    help_text = _escaped(axis.help)
    if axis.default is not None and not axis.boolean:
        help_text += f" (default: {axis.default})"
    if axis.boolean:
        spelled = [form.format(_dashed(name)) for name in names for form in ("--{}", "--no-{}", "--{}-both")]
        group.add_argument(*spelled, dest=AXIS + axis.name, action=BooleanAxis, nargs=0, help=help_text)
    else:
        flags = [f"--{_dashed(name)}" for name in names]
        group.add_argument(*flags, dest=AXIS + axis.name, metavar="LIST", help=help_text)


def add_suite(parser: Parser, default: str) -> None:
    """Add the suite, and the choice of another one's cases for its backends."""
    parser.add_argument(
        "suite",
        nargs="?",
        metavar="SUITE|FILE.toml",
        help=(f"a name of `attnbench list suites`, or your own file; with --help its axes (default: {default})"),
    )
    parser.add_argument(
        "--cases",
        metavar="SUITE|FILE.toml",
        help="measure the cases of this suite of the same workload instead (default: its own)",
    )


def add_workload(parser: Parser) -> None:
    """Add the choice of a workload, for a verb that accepts a shape without a suite."""
    parser.add_argument(
        "--workload",
        metavar="NAME",
        help=(
            "workload of the shape, of `attnbench list workloads` (default: the first that has all given shape flags, "
            "attention before others)"
        ),
    )


def workload_of(args: argparse.Namespace, who: str) -> str:
    """Return the workload named by --workload, or else the first that has every given shape flag.

    Raises:
        UsageError: there is no such workload.
    """
    names = list(workload_names())
    if args.workload is not None:
        if args.workload not in names:
            raise unknown(who, "--workload", args.workload, names)
        return str(args.workload)
    given = {name.removeprefix(AXIS) for name, text in vars(args).items() if name.startswith(AXIS) and text is not None}
    names.sort(key=lambda name: name != FIRST)
    fitting = (name for name in names if given <= {axis.name for axis in load_workload(name).axes})
    return next(fitting, FIRST)


def shape_suite(workload: str) -> str:
    """Return the suite of one shape of a workload, which `compare` measures by default."""
    return "compare" if workload == FIRST else f"compare-{workload}"


def add_backends(parser: Parser, *, baseline: bool = True) -> None:
    """Add the choice of backends, and of the baseline if something is compared."""
    group = parser.add_argument_group("backends")
    group.add_argument(
        "--backends",
        action="append",
        metavar="NAMES|FILE.py",
        help=(
            "comma list of names, name[config], name[*] for every configuration of the shape plus the suite's "
            "references, wildcards (sdpa-*), all, or a|b for the first that can run, replacing the suite's; a Python "
            "file adds its backends to the selection (default: the suite's)"
        ),
    )
    group.add_argument("--skip", action="append", metavar="NAMES", help="omit these (default: none)")
    group.add_argument(
        "--path",
        action="append",
        metavar="DIR",
        help=(
            "checkout of a library that is in no package index: generative-recommenders, for hstu-meta-triton "
            "(default: the one in its environment variable)"
        ),
    )
    if not baseline:
        parser.set_defaults(baseline=None)
        return
    group.add_argument("--baseline", metavar="NAME", help="reference of the speed-ups (default: the suite's)")


def add_measuring(parser: Parser, names: Iterable[str] | None = None) -> None:
    """Add the settings, all or those named, and the flag that resumes a run."""
    group = parser.add_argument_group("measuring", "Defaults apply unless the suite sets a value.")
    wanted = None if names is None else set(names)
    for one in SETTINGS:
        if wanted is None or one.name in wanted:
            default = "none" if one.default is None else str(one.default).removesuffix(".0")
            group.add_argument(one.flag, metavar=one.metavar, help=f"{_escaped(one.help)} (default: {default})")
    group.add_argument(
        "--resume",
        nargs="?",
        const="latest",
        metavar="RUN",
        help=(
            "finish this run: a run file, the id of one in --out, latest or previous (default of the bare flag: latest)"
        ),
    )


def add_output(parser: Parser) -> None:
    """Add the flags of outputs."""
    group = parser.add_argument_group("output", "A path, or - for stdout (the table then moves to stderr).")
    add_exports(group)
    group.add_argument(
        "--save", action=argparse.BooleanOptionalAction, default=True, help="keep the run file (default: kept)"
    )
    group.add_argument("-o", "--out", metavar="DIR", default="results", help="folder of run files (default: results)")
    group.add_argument("--dry-run", action="store_true", help="show the plan and an estimate without measuring")
    group.add_argument("-q", "--quiet", action="store_true", help="print only the name of the run file")
    group.add_argument("-v", "--verbose", action="store_true", help="print each row's outcome and notes on stderr")


def add_view(parser: Parser, *, layout: bool = True) -> None:
    """Add the flags of the look of tables."""
    from attnbench.presentation.columns import ALL, KEYS

    group = parser.add_argument_group("table")
    group.add_argument(
        "--columns",
        metavar="LIST",
        help=(
            f"columns of the tables, of {', '.join(KEYS[1:])}; or {ALL}; the matrix at the end shows the first numeric "
            "one (default: as many as fit the width)"
        ),
    )
    group.add_argument(
        "--sort",
        metavar="COLUMN",
        help=("order of the rows: a column, backend or plan, best first; COLUMN:reverse reverses it (default: median)"),
    )
    if layout:
        group.add_argument(
            "--layout",
            metavar="NAME",
            help=(
                "print the output of an older script (`attnbench list layouts`) instead of attnbench's table, which "
                "moves to stderr; its pictures go to a folder beside the run file (default: none)"
            ),
        )


def view_of(args: argparse.Namespace, who: str) -> View:
    """Return the view that the flags of `add_view` request.

    Raises:
        UsageError: there is no such column.
    """
    from attnbench.presentation.columns import ALL, KEYS, PLAN, VALUES, View

    names = () if args.columns is None else tuple(name.strip() for name in args.columns.split(",") if name.strip())
    if args.columns is not None and not names:
        raise names_nothing(who, "--columns", args.columns, "columns with commas between")
    for name in names:
        if name not in (*KEYS, ALL):
            raise unknown(who, "--columns", name, [ALL, *KEYS])
    key, _, turn = (args.sort or "median").partition(":")
    if key not in (*VALUES, "backend", PLAN):
        raise unknown(who, "--sort", key, ["backend", PLAN, *VALUES])
    if turn not in ("", "reverse"):
        raise UsageError(refusal(who, "--sort", args.sort, "cannot be used", f"{key} or {key}:reverse"))
    return View((ALL,) if ALL in names else names, key, bool(turn))


def add_exports(group: argparse._ArgumentGroup | Parser) -> None:
    """Add a flag for every format."""
    from attnbench.cli.formats import format_names, load_format

    for name in format_names():
        group.add_argument(f"--{name}", metavar="PATH", dest=f"export_{name}", help=_escaped(load_format(name).title))


def exports(args: argparse.Namespace, who: str) -> dict[str, str]:
    """Return the requested exports, by exporter's name.

    Raises:
        UsageError: two of them go to stdout or to one file.
    """
    asked = {
        name.removeprefix("export_"): path
        for name, path in vars(args).items()
        if name.startswith("export_") and path is not None
    }
    piped = [name for name, path in asked.items() if path == "-"]
    if len(piped) > 1:
        wrong = f"wants stdout, as --{piped[0]} does"
        raise UsageError(refusal(who, f"--{piped[1]}", "-", wrong, "one of them", "give the other a file name"))
    places: dict[Path, str] = {}
    for name, path in asked.items():
        first = places.setdefault(Path(path).absolute(), name)
        if path != "-" and first != name:
            raise UsageError(refusal(who, f"--{name}", path, f"is where --{first} goes", "a file of its own each"))
    return asked


def check_exports(asked: dict[str, str], by: str | None = None) -> None:
    """Check before measuring that every export can be written.

    Raises:
        UsageError: naming the path.
        Unavailable: naming the library that the format needs.
    """
    from attnbench.cli.formats import check_format

    for name, path in asked.items():
        check_format(name, path, by)


def backend_words(values: Sequence[str] | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split the values of --backends into selectors and files.

    Raises:
        UsageError: a value names nothing.
    """
    files: list[str] = []
    names: list[str] = []
    for word in selector_words("--backends", values):
        # A path to something else is refused as a file: no backend has such a name.
        is_path = word.endswith(".py") or "/" in word.partition("[")[0]
        (files if is_path else names).append(word)
    return tuple(names), tuple(dict.fromkeys(files))


def selector_words(flag: str, values: Sequence[str] | None) -> list[str]:
    """Return the selectors of a flag that may be given several times.

    Raises:
        UsageError: a value names nothing.
    """
    from attnbench.backends.registry import split_selectors

    words = []
    for value in values or ():
        if not (named := split_selectors(value)):
            raise names_nothing("attnbench", flag, value, "see `attnbench list backends`")
        words += named
    return words


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _escaped(text: str) -> str:
    return text.replace("%", "%%")
