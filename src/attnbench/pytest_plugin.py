"""The pytest fixture `attnbench`: time a kernel, compare it, and hold it to a bound, in a test.

    def test_mine_is_not_slower(attnbench):
        found = attnbench.compare({"torch": reference, "mine": kernel})
        found.assert_speedup("mine", at_least=0.98)

What was measured is printed in a section of its own at the end of the session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from attnbench.api import Comparison, Timing


class Bench:
    """`attnbench.bench` and `attnbench.compare`, remembered for the summary."""

    def __init__(self, test: str, shown: list[str], options: Mapping[str, Any]) -> None:
        self._test, self._shown, self._options = test, shown, options

    def bench(self, fn: Callable[[], Any], **options: Any) -> Timing:
        """Time one function; see `attnbench.bench`."""
        from attnbench.api import bench

        return self._show(bench(fn, **{**self._options, **options}))

    def compare(self, functions: Mapping[str, Callable[[], Any]], **options: Any) -> Comparison:
        """Compare functions measured in turn; see `attnbench.compare`."""
        from attnbench.api import compare

        return self._show(compare(functions, **{**self._options, **options}))

    def _show(self, found: Any) -> Any:
        self._shown.append(f"{self._test}: {found}")
        return found


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the command line."""
    group = parser.getgroup("attnbench")
    group.addoption("--attnbench-device", default="auto", help="auto, cpu, cuda or cuda:N")
    group.addoption("--attnbench-max-seconds", type=float, default=None, help="sampling time of one measurement")


@pytest.fixture
def attnbench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """Times and compares functions; the results are printed at the end of the session."""
    options: dict[str, Any] = {"device": request.config.getoption("--attnbench-device")}
    seconds = request.config.getoption("--attnbench-max-seconds")
    if seconds is not None:
        options["max_seconds"] = seconds
    shown: list[str] = []
    yield Bench(request.node.name, shown, options)
    # Through the report, so that what a worker of pytest-xdist measured arrives in the main process too.
    request.node.user_properties += [("attnbench", line) for line in shown]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what was measured."""
    lines = [
        line
        for reports in terminalreporter.stats.values()
        for report in reports
        for key, line in getattr(report, "user_properties", ())
        if key == "attnbench"
    ]
    if lines:
        terminalreporter.section("attnbench")
        for line in dict.fromkeys(lines):
            terminalreporter.write_line(line)
