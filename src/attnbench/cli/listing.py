"""`attnbench list`: list the choices, without importing torch."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from attnbench.cli import flags
from attnbench.cli.output import Output
from attnbench.cli.parser import Parser
from attnbench.errors import Unavailable, UsageError, refusal, unknown

if TYPE_CHECKING:
    from attnbench.backends.base import Backend
    from attnbench.workloads.base import Axis

Rows = list[dict[str, Any]]


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "what", nargs="?", metavar="WHAT", help=(f"one of {', '.join(LISTS)} (default: the lists themselves)")
    )
    parser.add_argument("names", nargs="?", metavar="NAMES", help="the same as --backends NAMES")
    parser.add_argument(
        "--backends",
        action="append",
        metavar="NAMES|FILE.py",
        help=("only these, for `list backends` and `list configs`; a Python file adds its own (default: all)"),
    )
    parser.add_argument("--json", metavar="PATH", help="write the list as JSON; - for stdout")
    flags.add_shape(parser, note="For `list configs`: the shape whose configurations are listed, one value each.")
    parser.show_first("--backends", "--json", *flags.USUAL_SHAPE)
    parser.example(
        "attnbench list backends",
        "attnbench list suites",
        "attnbench list backends --json -",
        "attnbench list configs flash-triton --headdim 256 --mode bwd",
    )


def run(args: argparse.Namespace) -> int:
    """Show one of the lists; without a name, the names of the lists."""
    from attnbench.cli.request import axis_words
    from attnbench.store.files import check_writable, write_text

    if args.what not in (None, *LISTS):
        raise unknown("attnbench list", "WHAT", args.what, LISTS)
    if args.names is not None:
        args.backends = [*(args.backends or []), args.names]
    if args.backends and args.what not in ("backends", "configs"):
        wrong = f"does not narrow the list of {args.what or 'lists'}"
        accepted = "list backends, list configs"
        raise UsageError(refusal("attnbench list", "--backends", args.backends[0], wrong, accepted))
    if args.what != "configs":
        for name, text in axis_words(args, "attnbench list").items():
            raise UsageError(
                refusal(
                    "attnbench list",
                    f"--{name.replace('_', '-')}",
                    text,
                    f"does not narrow the list of {args.what or 'lists'}",
                    "list configs",
                )
            )
    if args.json not in (None, "-"):
        check_writable(args.json)
    rows = _lists() if args.what is None else LISTS[args.what](args)
    text = json.dumps(rows, indent=2, ensure_ascii=False) + "\n"
    if args.json == "-":
        Output().line(text.rstrip())
        return 0
    if args.json is not None:
        write_text(args.json, text)
    _show("spaces" if args.what == "configs" and not args.backends else args.what, rows)
    return 0


def _lists() -> Rows:
    return [{"list": f"attnbench list {name}", "what it shows": SHOWS[name]} for name in LISTS]


def _show(what: str | None, rows: Rows) -> None:
    from attnbench.report.listing import render_list

    if what == "backends":
        rows = _backend_table(rows)
    if what == "configs":
        rows = _config_table(rows)
    if what == "spaces":
        rows = _spaces(rows)
    render_list(rows, Output().console(), empty=f"no {what}", commands=what in ("backends", "spaces"))


def _backend_table(rows: Rows) -> Rows:
    """Return the columns that fit a table; --json has all."""
    several = len({row["workload"] for row in rows}) > 1
    return [
        {
            "name": row["name"],
            **({"workload": row["workload"]} if several else {}),
            "installed": (row["version"] or "yes") if row["installed"] else "no",
            "tested on": row["tested"] or "untested",
            "install": "" if row["installed"] else row["install"],
        }
        for row in rows
    ]


def _spaces(rows: Rows) -> Rows:
    """Return one row per backend: all backends together have thousands of configurations."""
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(row["name"].partition("[")[0], []).append(row["name"])
    defaults = {row["name"].partition("[")[0]: row["name"] for row in rows if row.get("default")}
    return [
        {
            "backend": name,
            "configurations": len(names),
            "default, or the first": defaults.get(name, names[0]),
            "all of them": f"attnbench list configs {name}",
        }
        for name, names in found.items()
    ]


def _config_table(rows: Rows) -> Rows:
    """Return one column per differing field if all have the same plain fields; else one column with all fields."""
    marked = any("default" in row for row in rows)
    nested = any(isinstance(value, dict) for row in rows for value in row.values())
    if len(rows) > 1 and not nested:  # --json has the shared ones too
        first = rows[0]
        shared = {name for name in first if all(name in row and row[name] == first[name] for row in rows)} - {"default"}
        rows = [{name: value for name, value in row.items() if name not in shared} for row in rows]
    found = []
    for row in rows:
        fields = {name: value for name, value in row.items() if name not in ("name", "default")}
        mark = {"default": "default" if row.get("default") else None} if marked else {}
        if len({tuple(row) for row in rows}) <= 1 and not nested:
            found.append({"name": row["name"], **fields, **mark})
        else:
            found.append({"name": row["name"], **mark, "fields": " ".join(_fields(fields))})
    return found


def _fields(values: Mapping[str, Any], within: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _fields(value, f"{within}{name}.")
        else:
            yield f"{within}{name}={'none' if value is None else value}"


def _backends(args: argparse.Namespace) -> Rows:
    from attnbench.machine.advice import install_line

    rows = []
    for name, backend in _chosen(args).items():
        missing = None
        try:
            backend.probe()
        except Unavailable as why:
            missing = install_line(str(why))
        rows.append(
            {
                "name": name,
                "workload": backend.workload,
                "installed": missing is None,
                "version": backend.version() if missing is None else None,
                "tested": backend.tested,
                "install": install_line(backend.install),
                "devices": list(backend.devices),
                "title": backend.title,
                "reason": missing,
            }
        )
    return rows


def _configs(args: argparse.Namespace) -> Rows:
    """Return the configurations for the case of the shape flags; backends without such an axis are skipped."""
    from attnbench.cli.request import axis_words
    from attnbench.workloads.base import load_workload, unknown_axis

    words = axis_words(args, "attnbench list")
    rows: Rows = []
    without: dict[str, dict[str, Axis]] = {}
    for backend in _chosen(args).values():
        workload = load_workload(backend.workload)
        axes = {axis.name: axis for axis in workload.axes}
        without |= {word: axes for word in words if word not in axes}
        if words.keys() <= axes.keys():
            case = workload.case({word: _one_value(axes[word], text) for word, text in words.items()})
            rows += _config_rows(backend, case)
    if without and not rows:
        word, axes = without.popitem()
        raise unknown_axis("attnbench list", word, axes.values())
    return rows


def _config_rows(backend: Backend, case: Any) -> Rows:
    """Return one row per configuration; the default is marked, and comes first if it is not in the search space."""
    there, default = list(backend.configs(case)), backend.default_of(case)
    if default is not None and all(config.short != default.short for config in there):
        there.insert(0, default)
    return [
        {
            "name": f"{backend.name}[{config.short}]",
            **config.values,
            **({} if default is None else {"default": config.short == default.short}),
        }
        for config in there
    ]


def _one_value(axis: Axis, text: str) -> Any:
    from attnbench.suites.plan import parse_axis

    values = parse_axis("attnbench list", axis, text)
    if len(values) != 1:
        flag = f"--{axis.name.replace('_', '-')}"
        raise UsageError(refusal("attnbench list", flag, text, f"is {len(values)} cases", "one value"))
    return values[0]


def _suites(args: argparse.Namespace) -> Rows:
    from attnbench.suites.load import case_names, load_suite, suite_names

    rows = []
    for name in [*suite_names(), *case_names()]:
        suite = load_suite(name, "cuda")
        rows.append({"name": name, "workload": suite.workload, "layout": suite.layout, "title": suite.title})
    return rows


def _workloads(args: argparse.Namespace) -> Rows:
    from attnbench.workloads.base import load_workload, workload_names

    found = [load_workload(name) for name in workload_names()]
    return [
        {"name": one.name, "title": one.title, "variants": list(one.variants), "axes": [axis.name for axis in one.axes]}
        for one in found
    ]


def _timers(args: argparse.Namespace) -> Rows:
    from attnbench.measure.timer import all_timers

    return [{"name": one.name, "devices": list(one.devices), "title": one.title} for one in all_timers().values()]


def _layouts(args: argparse.Namespace) -> Rows:
    from attnbench.formats.layouts import layout_names, load_layout

    return [{"name": name, "title": load_layout(name).title} for name in layout_names()]


def _chosen(args: argparse.Namespace) -> dict[str, Any]:
    from attnbench.backends.registry import select
    from attnbench.suites.user_backends import known_backends, user_backends

    selectors, files = flags.backend_words(args.backends)
    if not selectors:
        return user_backends(files) if files else known_backends()
    known = known_backends(files)
    return {name: known[name] for name in map(_name, select(selectors, backends=known))}


def _name(selector: str) -> str:
    from attnbench.backends.registry import parse_selector

    return parse_selector(selector)[0]


LISTS: dict[str, Callable[[argparse.Namespace], Rows]] = {
    "backends": _backends,
    "configs": _configs,
    "suites": _suites,
    "workloads": _workloads,
    "timers": _timers,
    "layouts": _layouts,
}
SHOWS = {
    "backends": "implementations, whether they are installed, and the command that installs them",
    "configs": "backends with configurations (used as name[config]), or those of one backend for a shape",
    "suites": "sets of cases and backends for run, check and profile",
    "workloads": "families of problems, with the axes of their shapes",
    "timers": "ways to measure a call, for --timer",
    "layouts": "formats of older scripts, for export and import",
}
"""What each list shows, for `attnbench list` without a name."""
