"""The steps that `run`, `compare` and `check` share: plan, check the outputs, execute, show and save."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from attnbench.cli.ending import exit_code
from attnbench.cli.executors import executors_of, jobs_of
from attnbench.cli.flags import backend_words, check_exports, exports
from attnbench.cli.output import Output
from attnbench.cli.progress import Bar
from attnbench.cli.request import resumed
from attnbench.errors import AttnbenchError, NothingToRun, UsageError, refusal
from attnbench.presentation import figures
from attnbench.record import PlannedGroup, Record, Run, Status

if TYPE_CHECKING:
    from rich.console import Console

    from attnbench.formats.layouts.base import Layout
    from attnbench.suites.estimate import Estimate
    from attnbench.sweep.executor import Executor
    from attnbench.sweep.run import Event


class Shown(Protocol):
    """Prints a growing run: `report.table.Tables`, `report.checks.Checks`."""

    def more(self, run: Run) -> None:
        """Print what is complete and not printed yet."""

    def end(self, run: Run) -> None:
        """Print the rest and the summary."""


Show = Callable[["Console"], Shown]


def plan_and_execute(args: argparse.Namespace, verb: str, plan: Callable[[], Run], show: Show) -> Run | int:
    """Plan and execute a run, after finding every error that can be found in advance.

    Args:
        args: parsed flags.
        verb: the command.
        plan: creates the run, unless --resume names one.
        show: creates the object that prints the tables.

    Returns:
        The run with its records, or an exit code if there was nothing to measure or Ctrl-C ended it.

    Raises:
        AttnbenchError: the run cannot be executed.
    """
    from attnbench.suites.estimate import estimate, refused

    who = f"attnbench {verb}"
    asked = exports(args, who)
    check_exports(asked)
    layout = layout_of(args, who, asked)
    aside = "-" in asked.values() or (layout is not None and not args.dry_run)
    output = Output(results_to_stderr=aside, quiet=args.quiet)
    shown = None if args.quiet else show(output.console())
    with Bar(output, who, silent=args.quiet or args.dry_run) as bar:
        run, path = _planned(args, verb, plan)
        if layout is not None:
            _check_fits(layout, run, who)
        kept = path if args.save else None
        if kept is not None:
            _check_writable(kept)
        files = backend_words(args.backends)[1]
        executors = executors_of(args, who, run, files)
        jobs = jobs_of(args, who)
        time = estimate(run, files=files, executors=len(executors), jobs=jobs)
        if args.dry_run:
            lost = {**time.lost, **refused(run, files=files, lost=time.lost)}
            _show_plan(run, time, lost, executors, output)
            return 0
        bar.plan(run, time.groups, len(executors))
        growing = _Growing(run, bar, shown, output, aloud=args.verbose)
        try:
            run = _execute(run, kept, files, growing, executors, jobs)
        except KeyboardInterrupt as ending:
            _show_finished(growing, bar)
            written, failed = _written(growing.run, asked) if growing.run.records else ([], None)
            output.note(_stopped(run, kept, args, verb, written))
            if failed is not None:
                raise failed from None
            return exit_code(ending)
        except UsageError as error:  # the run file cannot be written: the results are printed without it
            if not growing.over:
                raise
            _show_finished(growing, bar)
            written, _ = _written(growing.run, asked)
            there = f"; what was measured is in {', '.join(written)}" if written else ""
            raise UsageError(f"{error}{there}") from None
    _finish(run, kept, asked, output, shown, layout, pictures=path.with_suffix(""))
    return run


def _planned(args: argparse.Namespace, verb: str, plan: Callable[[], Run]) -> tuple[Run, Path]:
    from attnbench.store.runfile import default_path

    if args.resume is not None:
        return resumed(args, verb)
    run = plan()
    return run, default_path(run, args.out)


def layout_of(args: argparse.Namespace, who: str, asked: Mapping[str, str]) -> Layout | None:
    """Return the layout that replaces the tables on stdout.

    Raises:
        UsageError: there is no layout of this name, it prints nothing, or stdout is needed for another output.
    """
    from attnbench.formats.layouts import load_layout

    name = getattr(args, "layout", None)
    if name is None:
        return None
    taken = next((f"--{one}" for one, path in asked.items() if path == "-"), "--quiet" if args.quiet else None)
    if taken is not None:
        raise UsageError(refusal(who, "--layout", name, f"wants stdout, as {taken} does", "one of the two"))
    return load_layout(name)


def _check_fits(layout: Layout, run: Run, who: str) -> None:
    """Refuse, before measuring, a layout that cannot be written for the plan.

    Raises:
        UsageError: naming the workload.
    """
    strange = next(
        (one.workload for one in run.plan if layout.workloads and one.workload not in layout.workloads), None
    )
    if strange is not None:
        wrong = f"has no place for the workload {strange}"
        raise UsageError(refusal(who, "--layout", layout.name, wrong, f"a suite of {' or '.join(layout.workloads)}"))


class _Growing:
    """Handles the events of a run: each updates the bar, a finished group is printed, a lost executor is noted.

    With `aloud` (--verbose), `output` gets a line for each finished row.
    """

    def __init__(self, run: Run, bar: Bar, shown: Shown | None, output: Output, *, aloud: bool) -> None:
        self.run, self.bar, self.shown, self.output, self.aloud = run, bar, shown, output, aloud
        self.over = False
        "whether the measurement is finished"

    def event(self, event: Event) -> None:
        """Handle the next event."""
        self.bar.event(event)
        words = _ending(event.record) if self.aloud and event.record is not None else None
        words = event.text or None if event.kind in ("waiting", "lost", "unwritten", "ending") else words
        if words is not None:
            with self.bar.aside():
                self.output.note(words)
        if event.run is None or event.text:
            return
        self.run, self.over = event.run, event.kind == "done"
        if self.shown is not None:
            with self.bar.aside():
                self.shown.more(event.run)


def _execute(
    run: Run, path: Path | None, files: tuple[str, ...], growing: _Growing, executors: Sequence[Executor], jobs: int
) -> Run:
    from attnbench.sweep.run import execute

    return execute(run, path=path, backend_files=files, on_event=growing.event, executors=executors, jobs=jobs)


def _ending(record: Record) -> str:
    """Return the outcome of a row, for --verbose."""
    said = [record.reason, *record.notes]
    return f"{record.group}  {record.backend}: {'; '.join([record.status.value, *(text for text in said if text)])}"


def _show_finished(growing: _Growing, bar: Bar) -> None:
    """Print the summary after Ctrl-C; the finished cases are printed already."""
    if growing.shown is not None and growing.run.records:
        with bar.aside():
            growing.shown.end(growing.run)


def _finish(
    run: Run,
    path: Path | None,
    asked: dict[str, str],
    output: Output,
    shown: Shown | None,
    layout: Layout | None,
    *,
    pictures: Path,
) -> None:
    from attnbench.cli.formats import write_format

    written = [] if path is None else [str(path)]
    failed: AttnbenchError | None = None
    missed: str | None = None
    try:  # print the result before writing files, so that Ctrl-C cannot lose it
        if shown is not None:
            shown.end(run)
        if layout is not None:
            _print_layout(run, layout)
    finally:  # even if the reader of the table closes the pipe
        files, failed = _written(run, asked)
        written += files
        if layout is not None and layout.pictures:
            written += _drawn(run, layout, pictures, output)
        missed = None if path is None else _keep(path)
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


def _drawn(run: Run, layout: Layout, folder: Path, output: Output) -> list[str]:
    """Write a layout's pictures; say instead why there are none."""
    try:
        layout.write(run, folder)
    except AttnbenchError as error:
        output.note(f"{error}; the run can be drawn later: attnbench export {run.id} --layout {layout.name} --to DIR")
        return []
    return [str(folder)]


def _written(run: Run, asked: Mapping[str, str]) -> tuple[list[str], AttnbenchError | None]:
    """Write the requested files except those on stdout; return their names, and the first error."""
    from attnbench.cli.formats import write_format

    written: list[str] = []
    failed: AttnbenchError | None = None
    for name, target in asked.items():
        try:
            written += [target] if target != "-" and write_format(run, name, target) else []
        except AttnbenchError as error:  # an error of one file must not prevent the others
            failed = failed or error
    return written, failed


def _keep(path: Path) -> str | None:
    from attnbench.store.history.writing import keep

    return keep(path)


def _print_layout(run: Run, layout: Layout) -> None:
    """Print an older script's output, alone on stdout: attnbench's table and all other lines then go to stderr.

    Raises:
        UsageError: the run does not fit the layout, or its script printed nothing.
    """
    text = layout.console(run)
    if text is None:
        raise UsageError(refusal("attnbench", "--layout", layout.name, "prints nothing", "attnbench export --to PATH"))
    Output().line(text.rstrip("\n"))
    for note in layout.notes(run):
        Output().note(note)


def verdict(run: Run) -> int:
    """Return the exit code of a measured run: 1 if an output was wrong.

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
    """Return the reason why a run has no result, from its first record."""
    first = next((record for record in run.records if record.reason), None)
    if first is None or first.reason is None:
        return NothingToRun(f"attnbench: suite={run.suite} has no row that could run; its plan is empty")
    reason = f"{first.backend} {first.status.value}: {first.reason.removeprefix(f'{first.backend}: ')}"
    return NothingToRun(f"attnbench: suite={run.suite} has no row that could run; {reason}")


def _check_writable(path: Path) -> None:
    from attnbench.store.files import check_writable

    check_writable(path)


def _stopped(run: Run, path: Path | None, args: argparse.Namespace, verb: str, written: Sequence[str]) -> str:
    """Return what is kept after Ctrl-C, and the command that resumes; `written`: more files with finished groups."""
    import shlex

    from attnbench.store.runfile import read
    from attnbench.sweep.run import without_interrupted

    if path is None:
        kept_in = f"what is finished is in {', '.join(written)}" if written else "nothing is kept"
        return f"attnbench {verb}: stopped; --no-save was given, so {kept_in}"
    if not path.is_file():
        return f"attnbench {verb}: stopped before the first group was measured; nothing is kept"
    kept = read(path)
    there = {(one.group, one.backend) for one in without_interrupted(kept).records}
    whole = {one.group for one in run.plan if all((one.group, name) in there for name in one.backends)}
    cut = len({record.group for record in kept.records} - whole)
    files = [word for file in backend_words(args.backends)[1] for word in ("--backends", file)]
    gpus = [] if args.gpus is None else ["--gpus", args.gpus]
    if getattr(args, "engine", None) == "ray":
        gpus = ["--engine", "ray", "--address", args.address]
    line = shlex.join(["attnbench", verb, "--resume", str(path), *gpus, *files])
    also = f", also in {', '.join(written)}" if written else ""
    what = f"{len(whole)} of {len(run.plan)} groups are kept" + (f", {cut} more cut short" if cut else "")
    return f"attnbench {verb}: stopped; {what}{also}; to finish: {line}"


def _table_bytes(group: PlannedGroup) -> int:
    from attnbench.workloads.base import load_workload

    workload = load_workload(group.workload)
    return workload.table_bytes(workload.case(group.case))


def _show_plan(
    run: Run, time: Estimate, lost: Mapping[str, str], executors: Sequence[Executor], output: Output
) -> None:
    from attnbench.machine.advice import install_line
    from attnbench.report.terminal import Terminal

    done = {(record.group, record.backend) for record in run.records}
    groups = [group for group in run.plan if any((group.group, name) not in done for name in group.backends)]
    if not groups:
        size = f"{len(run.plan)} group{'s' * (len(run.plan) != 1)}"
        output.line(f"{run.suite}: its plan of {size} is finished; nothing is left to measure")
        return
    rows = sum(len(group.backends) for group in groups)
    terminal = Terminal(output.console())
    terminal.title(f"{run.suite} on {', '.join(executor.name for executor in executors)}", "")
    shown: tuple[str, ...] = ()
    for group in groups:
        if group.backends != shown:  # most plans have the same for every case
            shown = group.backends
            terminal.line(", ".join(shown), "dim")
        terminal.line(f"  {group.group}")
    terminal.gap()
    terminal.line(
        f"{len(groups)} group{'s' * (len(groups) != 1)}, {rows} row{'s' * (rows != 1)}, "
        f"baseline {run.settings.baseline}"
    )
    terminal.losses(("skipped", name, install_line(why)) for name, why in lost.items())
    terminal.item("time", str(time), "dim")
    if tables := max(_table_bytes(group) for group in groups):
        terminal.item("memory", f"tables of the model: {figures.size(tables)}, in the largest case", "dim")
    output.line(f"command: {run.command}")
