"""What `run`, `compare` and `check` share: make the plan, check the outputs, execute, show and save."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.cli.flags import backend_words, check_exports, exports
from attnbench.cli.output import Output
from attnbench.cli.request import resumed
from attnbench.errors import AttnbenchError, NothingToRun
from attnbench.record import Run, Status

if TYPE_CHECKING:
    from rich.console import Console

INTERRUPTED = 130

Show = Callable[[Run, "Console"], None]


def plan_and_execute(args: argparse.Namespace, verb: str, plan: Callable[[], Run], show: Show) -> Run | int:
    """Plan a run and carry it out, with everything that can go wrong found first.

    Args:
        args: parsed flags.
        verb: the command.
        plan: makes the run where --resume does not name one.
        show: writes its table.

    Returns:
        The run with its records, or an exit code where nothing was to be measured or Ctrl-C ended it.

    Raises:
        AttnbenchError: anything that keeps it from being carried out.
    """
    from attnbench.store.runfile import default_path

    who = f"attnbench {verb}"
    asked = exports(args, who)
    check_exports(asked)
    if args.resume is not None:
        run, path = resumed(args, verb)
    else:
        run = plan()
        path = default_path(run, args.out)
    kept = path if args.save else None
    if kept is not None:
        _check_writable(kept)
    files = backend_words(args.backends)[1]
    output = Output(results_to_stderr="-" in asked.values(), quiet=args.quiet)
    if args.dry_run:
        _show_plan(run, files, output)
        return 0
    try:
        run = _execute(run, kept, files, output)
    except KeyboardInterrupt:
        output.note(_stopped(run, kept, args, verb))
        return INTERRUPTED
    _finish(run, kept, asked, output, show)
    return run


def _execute(run: Run, path: Path | None, files: tuple[str, ...], output: Output) -> Run:
    from attnbench.cli.progress import Bar
    from attnbench.sweep.run import execute

    with Bar(output) as bar:
        return execute(run, path=path, backend_files=files, on_event=bar.event)


def _finish(run: Run, path: Path | None, asked: dict[str, str], output: Output, show: Show) -> None:
    from attnbench.cli.formats import write_format

    # Files before the screen: whoever reads the table may leave in the middle of it.
    written = [] if path is None else [str(path)]
    failed: AttnbenchError | None = None
    for name, target in asked.items():
        try:
            written += [target] if target != "-" and write_format(run, name, target) else []
        except AttnbenchError as error:  # a disk that filled up meanwhile takes neither table nor other files along
            failed = failed or error
    missed = None if path is None else _keep(path)
    if not output.quiet:
        output = _show(run, output, show)
    for name, target in asked.items():
        if target == "-":
            write_format(run, name, target)
    if output.quiet:
        if path is not None:
            output.line(str(path))
    elif written:
        output.line(f"written: {', '.join(written)}")
    if missed is not None:
        output.note(missed)
    if failed is not None:
        raise failed


def _keep(path: Path) -> str | None:
    from attnbench.store.history.writing import keep

    return keep(path)


def _show(run: Run, output: Output, show: Show) -> Output:
    """Print the run.

    Into a pipe or a file, a suite with a seed's layout prints what the seed's program printed, for the
    scripts that read it; our own table and what follows goes to stderr then.  A terminal shows ours alone.
    """
    from attnbench.formats.layouts import load_layout
    from attnbench.report.table import render_run

    timed = any(record.time is not None for record in run.records)
    wanted = run.layout is not None and timed and not sys.stdout.isatty()
    layout = load_layout(run.layout) if run.layout is not None and wanted else None
    text = layout.console(run) if layout is not None else None
    if layout is None or text is None:
        show(run, output.console())
        return output
    output.line(text.rstrip("\n"))
    for note in layout.notes(run):
        output.note(note)
    beside = Output(results_to_stderr=True)
    render_run(run, beside.console())
    return beside


def verdict(run: Run) -> int:
    """Exit code of a measured run: 1 if an output was wrong.

    Raises:
        NothingToRun: no row passed.
    """
    statuses = {record.status for record in run.records}
    if Status.INCORRECT in statuses:
        return 1
    if Status.PASSED not in statuses:
        raise nothing_ran(run)
    return 0


def nothing_ran(run: Run) -> NothingToRun:
    """Why a run has no result, from its first record."""
    first = next((record for record in run.records if record.reason), None)
    if first is None or first.reason is None:
        return NothingToRun(f"attnbench: suite={run.suite} has no row that could run; its plan is empty")
    reason = f"{first.backend} {first.status.value}: {first.reason.removeprefix(f'{first.backend}: ')}"
    return NothingToRun(f"attnbench: suite={run.suite} has no row that could run; {reason}")


def _check_writable(path: Path) -> None:
    from attnbench.store.files import check_writable

    check_writable(path)


def _stopped(run: Run, path: Path | None, args: argparse.Namespace, verb: str) -> str:
    """What Ctrl-C left, and the line that goes on."""
    import shlex

    from attnbench.store.runfile import read

    if path is None:
        return f"attnbench {verb}: stopped; --no-save was given, so nothing is kept"
    if not path.is_file():
        return f"attnbench {verb}: stopped before the first group was measured; nothing is kept"
    kept = read(path)
    groups = len({record.group for record in kept.records})
    files = [word for file in backend_words(args.backends)[1] for word in ("--backends", file)]
    line = shlex.join(["attnbench", verb, "--resume", str(path), *files])
    return f"attnbench {verb}: stopped; {groups} of {len(run.plan)} groups are kept; to finish: {line}"


def _show_plan(run: Run, files: tuple[str, ...], output: Output) -> None:
    from attnbench.report.page import Paper
    from attnbench.suites.estimate import estimate

    done = {(record.group, record.backend) for record in run.records}
    groups = [group for group in run.plan if any((group.group, name) not in done for name in group.backends)]
    if not groups:
        size = f"{len(run.plan)} group{'s' * (len(run.plan) != 1)}"
        output.line(f"{run.suite}: its plan of {size} is finished; nothing is left to measure")
        return
    rows = sum(len(group.backends) for group in groups)
    time = estimate(run, files=files)
    paper = Paper(output.console())
    paper.title(f"{run.suite} on {run.settings.device}", "")
    shown: tuple[str, ...] = ()
    for group in groups:
        if group.backends != shown:  # a plan gives every case the same
            shown = group.backends
            paper.line(", ".join(shown), "dim")
        paper.line(f"  {group.group}")
    paper.gap()
    paper.line(f"{len(groups)} group{'s' * (len(groups) != 1)}, {rows} row{'s' * (rows != 1)}, "
               f"baseline {run.settings.baseline}")
    paper.item("time", str(time), "dim")
    output.line(f"command: {run.command}")
