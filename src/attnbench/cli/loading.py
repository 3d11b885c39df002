"""Run the loads of the options, then show and store the results."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

from attnbench.cli.ending import exit_code
from attnbench.cli.output import Output
from attnbench.errors import AttnbenchError, NothingToRun, UsageError, refusal
from attnbench.loadtest.gaps import count_of, is_possible
from attnbench.loadtest.run import MOST_PROBES, Bench, highest_rate
from attnbench.loadtest.setup import (
    Options,
    a_core_for_the_generator,
    check_weights,
    make_bench,
    make_users,
    page_bytes,
    pool_size,
    table_bytes,
)
from attnbench.machine.gpu_lock import holding
from attnbench.presentation import figures
from attnbench.presentation.load import ended, few_requests
from attnbench.store.files import check_writable, write_bytes, write_stdout
from attnbench.store.load_file import Highest, LoadRun, Point, default_path, dumps, write

WHO = "attnbench load"
STDOUT = "-"
FILES = ("json", "md", "html")
UNSAID = ("json", "md", "html", "plots", "out", "no_save", "no_wait", "quiet", "dry_run", "name", "help")
"Arguments that say nothing about what is measured."
PLACES = ("source", "checkpoint")
"Paths; a result stores only their last part."


def carry_out(args: argparse.Namespace, options: Options, scenario: str, rates: list[float], burstiness: float) -> int:
    """Serve each load, then show and store the results.

    Returns:
        The exit code: 0, or that of the signal that ended it (130 after Ctrl-C), with what was measured until then.

    Raises:
        NothingToRun: no request was answered; the result is shown and kept.
        AttnbenchError: anything in the request that cannot be.
    """
    asked = {name: target for name in FILES if (target := getattr(args, name)) is not None}
    _check_outputs(args, asked)
    output = Output(results_to_stderr=STDOUT in asked.values(), quiet=args.quiet)
    say = (lambda text: None) if args.quiet else output.note
    for rate in rates if scenario in ("server", "gaps") else ():
        count_of(rate, options.duration_s)  # raises for a rate that gives no request
    check_weights(options)
    if args.dry_run:
        for line in _planned(args, options, scenario, rates):
            output.line(line)
        return 0
    run = _begin(args, options)
    if not args.no_save:
        check_writable(default_path(run, args.out))
    with holding([options.device], output.note, wait=not args.no_wait), a_core_for_the_generator(options.device):
        bench = make_bench(options, say)
        say(f"load: {options.preset.model} on {options.device}, {bench.settings['users']} users: warming up")
        bench.warm_up()
        points: list[Point] = []
        highest: list[Highest] = []
        failed: AttnbenchError | None = None
        measure = _measure(args, bench, options, scenario, burstiness, points)
        try:
            highest = _loads(args, bench, options, scenario, rates, measure)
        except AttnbenchError as error:
            if not points:
                raise
            failed = error  # results so far are kept
    points.sort(key=lambda point: point.asked_rate or 0.0)
    run = dataclasses.replace(
        run,
        points=tuple(points),
        highest=tuple(highest),
        settings={**run.settings, **bench.settings},
        notes=bench.notes(),
    )
    _finish(args, run, asked, output)
    if failed is not None:
        raise failed
    if bench.ending is not None:
        return exit_code(bench.ending)
    if not any(point.answered for point in points):
        reason = next((reason for point in points for reason in point.refused), "none arrived")
        raise NothingToRun(f"{WHO}: requests={sum(point.issued for point in points)} have no answer; {reason}")
    return 0


def _planned(args: argparse.Namespace, options: Options, scenario: str, rates: list[float]) -> Iterator[str]:
    """Yield what would be served, and its memory and time."""
    users = make_users(options)
    yield (
        f"{args.name}, model {options.preset.model} on {options.device}: {len(users.numbers())} users, "
        f"{options.candidates} candidates, batches up to {options.max_batch}"
    )
    yield f"model  tables of {figures.size(table_bytes(options))}"
    if options.cached:
        sizes = {"pool": pool_size(options, users), "host memory": options.host_pages}
        said = (f"{n} pages, {figures.size(n * page_bytes(options))}, in the {name}" for name, n in sizes.items() if n)
        yield f"cache  {'; '.join(said)}; {options.page_size} tokens a page"
    else:
        yield "cache  none"
    wanted = rates or [*options.preset.rates]
    if args.find_rate:
        limits, count = ", ".join(f"{slo:g}" for slo in options.slos_ms), MOST_PROBES * len(options.slos_ms)
        yield f"loads  at most {count}, {scenario}: for the highest rate within {limits} ms"
    elif scenario == "offline":
        count = 1
        yield "loads  1, offline: all requests at once"
    else:
        count = len(wanted)
        yield f"loads  {count}, {scenario}: {', '.join(f'{rate:g}' for rate in wanted)} requests/s"
    yield (
        f"time   {options.duration_s:g} s of arrivals each, {count * options.duration_s:g} s in all, and up to "
        f"{options.drain_s:g} s more of each that is above capacity; warming up before"
    )
    yield f"command: {_command(args)}"


def _loads(
    args: argparse.Namespace,
    bench: Bench,
    options: Options,
    scenario: str,
    rates: list[float],
    measure: Callable[[float], Point],
) -> list[Highest]:
    """Run each requested load, none after Ctrl-C; return the highest rates if they were requested."""
    if args.find_rate:
        first = _first(rates, bench, options)
        found = []
        for slo in options.slos_ms:
            rate = highest_rate(measure, slo, first, possible=lambda rate: is_possible(rate, options.duration_s))
            found.append(Highest(slo_ms=slo, rate=rate, note=few_requests(None if rate is None else measure(rate))))
            if bench.ending is not None:  # the search of another limit may want a rate that was not tried
                break
        return found
    wanted = rates or [*options.preset.rates]
    for rate in wanted[:1] if scenario == "offline" else wanted:  # a preset has several
        if measure(rate).interrupted:
            break
    return []


def _first(rates: list[float], bench: Bench, options: Options) -> float:
    """Return the first rate of the search."""
    return rates[0] if rates else max(1.0, round(0.5 * (bench.capacity or options.preset.rates[0])))


def _measure(
    args: argparse.Namespace, bench: Bench, options: Options, scenario: str, burstiness: float, points: list[Point]
) -> Callable[[float], Point]:
    """Return a function that measures the load at a rate, once for each rate, and prints a line for it."""
    known: dict[float, Point] = {}

    def measure(rate: float) -> Point:
        if rate not in known:
            if scenario == "gaps":
                known[rate] = bench.returning(rate, burstiness)
            elif scenario == "replay":
                known[rate] = bench.replayed(rate)
            else:
                expected = rate if scenario == "server" or args.rate else bench.capacity or rate
                known[rate] = bench.by_loadgen(scenario, expected, slo_ms=options.slos_ms[0])
            points.append(known[rate])
            bench.on_progress(f"load: {ended(known[rate])}")
        return known[rate]

    return measure


def _begin(args: argparse.Namespace, options: Options) -> LoadRun:
    from attnbench.machine.fingerprint import environment
    from attnbench.store.runfile import new_id, now

    return LoadRun(
        id=new_id(),
        workload=args.name,
        model=options.preset.model,
        device=str(options.device),
        command=_command(args),
        started=now(),
        settings=options.words(),
        environment=environment(options.device),
    )


def _command(args: argparse.Namespace) -> str:
    """Return the command that repeats the load, without paths of this machine and without output flags."""
    words = ["attnbench", "load", args.name]
    if args.graph is False:  # of the other switches False is the default
        words.append("--no-graph")
    for name, value in vars(args).items():
        if name in UNSAID or value is None or value is False:
            continue
        words.append("--" + name.replace("_", "-"))
        if value is not True:
            words.append(Path(value).name if name in PLACES else str(value))
    return shlex.join(words)


def _check_outputs(args: argparse.Namespace, asked: dict[str, str]) -> None:
    from attnbench.report.libraries import require
    from attnbench.report.plots import LIBRARIES

    to_stdout = [name for name, target in asked.items() if target == STDOUT]
    if len(to_stdout) > 1:
        raise UsageError(
            refusal(WHO, f"--{to_stdout[1]}", STDOUT, f"wants stdout, as --{to_stdout[0]} does", "one of the two")
        )
    for target in asked.values():
        if target != STDOUT:
            check_writable(target)
    if args.plots is not None or args.html is not None:
        require(WHO, LIBRARIES)
    if args.plots is not None:
        check_writable(Path(args.plots) / "a.png")


def _finish(args: argparse.Namespace, run: LoadRun, asked: dict[str, str], output: Output) -> None:
    from attnbench.presentation.load import markdown
    from attnbench.report.load import render_load

    written = [] if args.no_save else [str(write(run, default_path(run, args.out)))]
    if not args.quiet:
        render_load(run, output.console())
    for name, target in asked.items():
        text = {"json": dumps, "md": markdown, "html": _page}[name](run)
        if target == STDOUT:
            write_stdout(text.encode())
        else:
            write_bytes(target, text.encode())
            written.append(target)
    if args.plots is not None:
        from attnbench.report.load_chart import write_chart

        written += [str(path) for path in write_chart(run, args.plots)]
    if written and not args.quiet:
        output.note(f"written: {', '.join(written)}")


def _page(run: LoadRun) -> str:
    from attnbench.report.load_page import page

    return page(run)
