"""The pytest fixture `attnbench`: time a kernel, compare it, and assert a bound, in a test.

    def test_mine_is_not_slower(attnbench):
        found = attnbench.compare({"torch": reference, "mine": kernel})
        found.assert_speedup("mine", at_least=0.98)

The results are printed in a section of their own at the end of the session.  `--attnbench-save` saves them as a run
file that every command of attnbench reads; `--attnbench-compare` compares them with a saved run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from attnbench.api import Comparison, Timing
    from attnbench.record import Run

FOLDER = "results"
LATEST = "latest"
SHOWN, KEPT = "attnbench", "attnbench run"
"""Keys of user properties in a test's report: lines for people, and run files with one test's records."""
AGAINST = pytest.StashKey["Run"]()


class Bench:
    """`attnbench.bench` and `attnbench.compare`, with their results recorded for the summary."""

    def __init__(self, test: str, options: Mapping[str, Any]) -> None:
        self.shown: list[str] = []
        self.found: list[tuple[Mapping[str, Timing], Comparison | None]] = []
        self._test, self._options = test, options

    def bench(self, fn: Callable[..., Any], *args: Any, **options: Any) -> Timing:
        """Time one function; see `attnbench.bench`."""
        from attnbench.api import bench

        found = bench(fn, *args, **{**self._options, **options})
        self.found.append(({found.name: found}, None))
        self._show(found)
        return found

    def compare(self, functions: Any, *more: Callable[[], Any], **options: Any) -> Comparison:
        """Compare functions measured alternately; see `attnbench.compare`."""
        from attnbench.api import compare

        found = compare(functions, *more, **{**self._options, **options})
        self.found.append((found.timings, found))
        self._show(found)
        return found

    def _show(self, found: Timing | Comparison) -> None:
        self.shown.append(f"{self._test}: {found}")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the command-line options."""
    group = parser.getgroup("attnbench")
    group.addoption("--attnbench-device", default="auto", help="auto, cpu, cuda or cuda:N")
    group.addoption("--attnbench-max-seconds", type=float, default=None, help="sampling time of one measurement")
    group.addoption(
        "--attnbench-save",
        nargs="?",
        const="",
        default=None,
        metavar="PATH",
        help=f"save the results as a run file (default of the bare flag: a new one in {FOLDER})",
    )
    group.addoption(
        "--attnbench-compare",
        nargs="?",
        const=LATEST,
        default=None,
        metavar="RUN",
        help=(
            f"compare the results with a run file, the id of one in {FOLDER}, latest or previous (default of the bare "
            "flag: latest)"
        ),
    )


def pytest_configure(config: pytest.Config) -> None:
    """Read the run to compare with before measuring and before a newer one is saved."""
    text = config.getoption("--attnbench-compare")
    if text is None or hasattr(config, "workerinput"):  # in a worker of pytest-xdist
        return
    from attnbench.errors import AttnbenchError
    from attnbench.store.saved import read_run

    try:
        config.stash[AGAINST] = read_run(text, FOLDER, "--attnbench-compare")[1]
    except AttnbenchError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.fixture
def attnbench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """Times and compares functions; the results are printed at the end of the session."""
    options: dict[str, Any] = {"device": request.config.getoption("--attnbench-device")}
    seconds = request.config.getoption("--attnbench-max-seconds")
    if seconds is not None:
        options["max_seconds"] = seconds
    bench = Bench(request.node.name, options)
    yield bench
    # Through the report, so that results of a pytest-xdist worker reach the main process.
    request.node.user_properties += [(SHOWN, line) for line in bench.shown]
    wanted = any(request.config.getoption(name) is not None for name in ("--attnbench-save", "--attnbench-compare"))
    if bench.found and wanted:
        from attnbench.store.runfile import dumps

        text = dumps(_run(request.node.nodeid, bench, options["device"]))
        request.node.user_properties.append((KEPT, text))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the results; save and compare them if requested."""
    lines = _carried(terminalreporter, SHOWN)
    if not lines:
        return
    terminalreporter.section("attnbench")
    for line in lines:
        terminalreporter.write_line(line)
    texts = _carried(terminalreporter, KEPT)
    if not texts:
        return
    from attnbench.errors import AttnbenchError

    # The session is over: a failure to write or compare is printed and does not fail the session.
    run = _joined(texts)
    for step in (_compare, _save):
        try:
            for line in step(run, config):
                terminalreporter.write_line(line)
        except AttnbenchError as error:
            terminalreporter.write_line(str(error), red=True)


def _carried(reporter: Any, name: str) -> list[str]:
    """Return the values that the reports of all tests have under a name, each once."""
    found = (
        value
        for reports in reporter.stats.values()
        for report in reports
        for key, value in getattr(report, "user_properties", ())
        if key == name
    )
    return list(dict.fromkeys(found))


def _run(test: str, bench: Bench, device: str) -> Run:
    """Return the measurements of one test as a run; a test with several measurements has one case for each."""
    from attnbench.machine.devices import resolve
    from attnbench.machine.fingerprint import environment
    from attnbench.record import Record, Run, Settings, Status
    from attnbench.store.runfile import new_id, now

    place, records = resolve(device), list[Record]()
    for number, (timings, compared) in enumerate(bench.found, start=1):
        case: dict[str, Any] = {"test": test} | ({"number": number} if len(bench.found) > 1 else {})
        case_id = test if len(bench.found) == 1 else f"{test}:{number}"
        for name, timing in timings.items():
            records.append(
                Record(
                    workload="python",
                    case=case,
                    case_id=case_id,
                    group=case_id,
                    backend=name,
                    status=Status.PASSED,
                    kernels=timing.kernels,
                    kernel_launches=timing.kernel_launches,
                    kernel_ms=timing.kernel_ms,
                    environment=0,
                    notes=timing.notes,
                    time=timing.time,
                    timers=timing.timers or {},
                    power_w=timing.power,
                    speedup=compared.speedups.get(name) if compared else None,
                )
            )
    return Run(
        id=new_id(),
        suite="pytest",
        command="pytest",
        started=now(),
        settings=Settings(device=str(place)),
        environments=(environment(place),),
        records=tuple(records),
    )


def _joined(texts: Sequence[str]) -> Run:
    """Return the runs of all tests as one run."""
    import dataclasses

    from attnbench.store.runfile import loads

    first, *others = [loads(text) for text in texts]
    environments, records = list(first.environments), list(first.records)
    for run in others:
        environment = run.environments[0]
        if environment not in environments:
            environments.append(environment)
        place = environments.index(environment)
        records += [dataclasses.replace(record, environment=place) for record in run.records]
    return dataclasses.replace(first, environments=tuple(environments), records=tuple(records))


def _save(run: Run, config: pytest.Config) -> Iterator[str]:
    target = config.getoption("--attnbench-save")
    if target is not None:
        from attnbench.store.runfile import default_path, write

        yield f"written: {write(run, Path(target) if target else default_path(run, FOLDER))}"


def _compare(run: Run, config: pytest.Config) -> Iterator[str]:
    """Yield the verdicts of `attnbench diff`; functions have no version, so their own times are judged."""
    before = config.stash.get(AGAINST, None)
    if before is not None:
        import io

        from rich.console import Console

        from attnbench.report.diff import render_diff
        from attnbench.report.terminal import trimmed
        from attnbench.verdict.diff import diff

        text = io.StringIO()
        render_diff(diff([before], [run], references=()), Console(file=trimmed(text), width=120), everything=True)
        yield from text.getvalue().rstrip().splitlines()
