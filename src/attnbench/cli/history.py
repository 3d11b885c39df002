"""`attnbench history`: list the stored runs, show one row's trend, add and restore runs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.cli.output import Output
from attnbench.cli.parser import Parser
from attnbench.errors import RunFileError, UsageError, parsed, refusal
from attnbench.suites.settings import whole

if TYPE_CHECKING:
    from attnbench.store.history.place import Place
    from attnbench.store.history.reading import Filters, KeptRun
    from attnbench.store.history.trends import Loss, Row, Trend

WHO = "attnbench history"
LISTED = 30
"Default number of listed runs."


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "row",
        nargs="?",
        metavar="ROW",
        help=("CASE/BACKEND, or any unique part of it: show this row's trend (default: list the runs)"),
    )
    group = parser.add_argument_group("which")
    group.add_argument("--case", metavar="TEXT", help="part of the case's id, instead of ROW")
    group.add_argument("--backend", metavar="NAME", help="the backend, or part of its name, instead of ROW")
    group.add_argument("--suite", metavar="NAME", help="only runs of this suite (default: all)")
    group.add_argument("--since", metavar="WHEN", help="only runs since a date; 30d is the last 30 days (default: all)")
    group.add_argument(
        "--limit", metavar="N", help=(f"the newest N runs (default: {LISTED} for the list, all for a trend)")
    )
    group = parser.add_argument_group("output", "A path, or - for stdout.")
    group.add_argument("--csv", metavar="PATH", help="the list or the trend, one line per run")
    group.add_argument("--json", metavar="PATH", help="the same as JSON, with the level changes")
    group = parser.add_argument_group("add and restore")
    group.add_argument("--add", nargs="+", metavar="RUN", help="add run files, or all of a folder, to the history")
    group.add_argument("--restore", metavar="RUN", help="write the run file of the run with this id")
    group.add_argument(
        "--to", metavar="PATH", help=("where --restore writes, - for stdout (default: its place in --out)")
    )
    group = parser.add_argument_group("where")
    group.add_argument(
        "--db",
        metavar="URL",
        help=(
            "postgresql://USER@HOST/DATABASE or sqlite:///FILE (default: the environment variable ATTNBENCH_HISTORY, or "
            "else history.sqlite in --out)"
        ),
    )
    group.add_argument("-o", "--out", metavar="DIR", default="results", help="folder of run files (default: results)")
    parser.example(
        "attnbench history",
        "attnbench history s16384-h16-d128/sdpa-cudnn",
        "attnbench history --case s4096 --backend flex --since 30d --csv -",
        "attnbench history --add results",
        "attnbench history --restore 1a2b3c4d --to -",
    )


def run(args: argparse.Namespace) -> int:
    """Execute the request; return 0, or 1 if a run file could not be added."""
    from attnbench.store.history.place import OFF, VARIABLE, find_place

    filters, place = _checked(args), find_place(args.db, args.out)
    if place is None:
        raise UsageError(refusal(WHO, VARIABLE, OFF, "says that there is no history", "--db URL, or another value"))
    if args.add is not None:
        return _add(args.add, place)
    if args.restore is not None:
        return _restore(args.restore, args.to, place, args.out)
    return _show(args, place, filters)


def _checked(args: argparse.Namespace) -> Filters:
    """Check everything that can be checked without opening a database."""
    from attnbench.store.files import check_writable
    from attnbench.store.history.reading import Filters, since

    asked = [name for name in ("add", "restore") if getattr(args, name) is not None]
    shown = [
        word
        for word, value in (
            ("ROW", args.row),
            ("--case", args.case),
            ("--backend", args.backend),
            ("--csv", args.csv),
            ("--json", args.json),
        )
        if value is not None
    ]
    if len(asked) > 1 or (asked and shown):
        other = "--restore" if asked[1:] else shown[0]
        raise UsageError(f"{WHO}: --{asked[0]} does not go with {other}; one of them")
    if args.to is not None and args.restore is None:
        raise UsageError(refusal(WHO, "--to", args.to, "goes with --restore", "--restore RUN --to PATH"))
    if args.row is not None and (args.case is not None or args.backend is not None):
        raise UsageError(f"{WHO}: ROW does not go with --case or --backend; CASE/BACKEND, or the two flags")
    if args.csv == args.json == "-":
        raise UsageError(refusal(WHO, "--json", "-", "wants stdout, as --csv does", "one of them"))
    for path in (args.csv, args.json, args.to):
        if path not in (None, "-"):
            check_writable(path)
    limit = None if args.limit is None else parsed(WHO, "--limit", args.limit, whole(1, 10**9))
    return Filters(args.suite, None if args.since is None else since(args.since), limit)


# ── runs in and out ────────────────────────────────────────────────────────────────────────────────


def _add(sources: Sequence[str], place: Place) -> int:
    from attnbench.store.history.opening import open_history
    from attnbench.store.history.writing import add
    from attnbench.store.runfile import read

    output, counts, failed = Output(), dict.fromkeys(("added", "grown", "unchanged", "older"), 0), 0
    files = list(_files(sources, output))
    if not files:  # without creating an empty history
        return 1
    with open_history(place, write=True) as history:
        for path, named in files:
            try:
                counts[add(history, read(path))] += 1
            except RunFileError as error:
                # A folder may hold other JSON files; a named file must be a run file.
                output.note(str(error))
                failed += named
            except UsageError as error:
                output.note(str(error))
                failed += 1
    words = [f"{count} {word}" for word, count in counts.items() if count or word == "added"]
    output.line(f"{place.name}: {', '.join(words)}")
    return 1 if failed else 0


def _files(sources: Sequence[str], output: Output) -> Iterator[tuple[Path, bool]]:
    """Yield run files, and whether each was named itself."""
    from attnbench.store.files import is_folder

    for source in sources:
        folder = Path(source)
        if not is_folder(folder):
            yield folder, True
            continue
        found = sorted(folder.glob("*.json"))
        if not found:
            output.note(refusal(WHO, "--add", source, "has no run file", "a folder of *.json"))
        yield from ((path, False) for path in found)


def _restore(run_id: str, target: str | None, place: Place, folder: str) -> int:
    from attnbench.store.files import check_writable, is_file, write_bytes
    from attnbench.store.history.entry import pack_text
    from attnbench.store.history.opening import open_history
    from attnbench.store.history.reading import text_of
    from attnbench.store.runfile import default_path, loads

    with open_history(place, write=False) as history:
        run_id, text = text_of(history, run_id)
    output, found = Output(), loads(text, who=run_id)
    if target == "-":
        output.line(text.rstrip("\n"))
        return 0
    path = Path(target) if target is not None else default_path(found, folder)
    data = pack_text(text)
    check_writable(path)
    if is_file(path) and path.read_bytes() != data:
        wrong = "is there and has another content"
        raise UsageError(refusal(WHO, "--to", path, wrong, "a new name; nothing was written"))
    write_bytes(path, data)
    output.line(f"written: {path}")
    return 0


# ── lists and trends ───────────────────────────────────────────────────────────────────────────────


def _show(args: argparse.Namespace, place: Place, filters: Filters) -> int:
    import dataclasses

    from attnbench.store.history.opening import open_history
    from attnbench.store.history.reading import list_runs
    from attnbench.store.history.trends import find_row, trends

    output = Output(results_to_stderr="-" in (args.csv, args.json))
    of_row = args.row is not None or args.case is not None or args.backend is not None
    with open_history(place, write=False) as history:
        if not of_row:
            cut = filters.limit is None and args.csv is None and args.json is None
            asked = dataclasses.replace(filters, limit=LISTED + 1) if cut else filters
            runs = list_runs(history, asked)
            _write(args, output, [_listed(item) for item in runs], [_listed(item) for item in runs])
            return _print_runs(runs, cut, output)
        row = find_row(history, args.row, case=args.case, backend=args.backend)
        found, losses = trends(history, row, filters)
    if not found and not losses:
        raise UsageError(refusal(WHO, "ROW", row, "is in no run that --suite and --since leave", "wider ones"))
    _write(args, output, [line for trend in found for line in _lines(trend)], _trend_data(row, found, losses))
    return _print_trends(found, losses, output)


def _print_runs(runs: list[KeptRun], cut: bool, output: Output) -> int:
    from attnbench.report.listing import render_list

    shown = runs[:LISTED] if cut else runs
    rows = [
        {
            "id": item.id,
            "started": item.started,
            "suite": item.suite,
            "machine": item.machine,
            "rows": item.rows,
            "outcomes": ", ".join(f"{count} {name}" for name, count in item.outcomes.items()),
        }
        for item in shown
    ]
    render_list(rows, output.console(), empty="no run that fits is in the history")
    if len(shown) < len(runs):
        output.note(f"the newest {LISTED}; --limit N shows more")
    return 0


def _print_trends(found: list[Trend], losses: list[Loss], output: Output) -> int:
    from attnbench.report.trend import render_losses, render_trend

    console = output.console()
    for number, trend in enumerate(found):
        if number:
            console.print()
        render_trend(trend, console)
    render_losses(losses, console)
    return 0


def _write(args: argparse.Namespace, output: Output, lines: list[dict[str, Any]], data: Any) -> None:
    from attnbench.store.files import write_text

    texts = []
    if args.csv is not None:
        texts.append((args.csv, _csv(lines)))
    if args.json is not None:
        texts.append((args.json, json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"))
    for path, text in texts:
        if path == "-":
            Output().line(text.rstrip("\n"))
        else:
            write_text(path, text)


def _csv(lines: list[dict[str, Any]]) -> str:
    import csv
    import io

    from attnbench.formats.exports.base import harmless

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if lines:
        writer.writerow(lines[0])
        writer.writerows(
            [harmless(value).replace("\r", " ") if isinstance(value, str) else value for value in line.values()]
            for line in lines
        )
    return text.getvalue()


def _listed(item: KeptRun) -> dict[str, Any]:
    from attnbench.record import Status

    counts = {status.value: item.outcomes.get(status.value, 0) for status in Status}
    return {
        "run": item.id,
        "started": item.started,
        "suite": item.suite,
        "machine": item.machine,
        "rows": item.rows,
        **counts,
    }


SERIES = ("workload", "config", "machine", "timer", "l2", "regime", "input", "lock_clocks")
POINT = ("started", "median_ms", "low_ms", "high_ms", "num_samples", "processes", "sm_mhz", "version", "source_hash")
ENVIRONMENT = ("torch", "triton", "cuda", "driver", "cudnn", "gpu_uuid")


def _lines(trend: Trend) -> Iterator[dict[str, Any]]:
    series = {
        "case_id": trend.row.case_id,
        "backend": trend.row.backend,
        **{name: getattr(trend, name) for name in SERIES},
    }
    changes = {change.index: change.ratio for change in trend.changes}
    for index, point in enumerate(_points(trend)):
        yield {**series, **point, "change": changes.get(index)}


def _points(trend: Trend) -> Iterator[dict[str, Any]]:
    for point in trend.points:
        machine = {name: getattr(point.environment, name, None) for name in ENVIRONMENT}
        yield {"run": point.run_id, **{name: getattr(point, name) for name in POINT}, **machine}


def _trend_data(row: Row, found: list[Trend], losses: list[Loss]) -> dict[str, Any]:
    return {
        "case_id": row.case_id,
        "backend": row.backend,
        "series": [
            {
                **{name: getattr(trend, name) for name in SERIES},
                "points": list(_points(trend)),
                "changes": [
                    {
                        "run": trend.points[change.index].run_id,
                        "index": change.index,
                        "ratio": change.ratio,
                        "before_ms": change.before_ms,
                        "after_ms": change.after_ms,
                        "offset": change.offset,
                        "differences": list(change.differences),
                    }
                    for change in trend.changes
                ],
            }
            for trend in found
        ],
        "losses": [
            {"run": loss.run_id, "started": loss.started, "status": loss.status, "reason": loss.reason}
            for loss in losses
        ],
    }
