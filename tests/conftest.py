"""Rules for all tests: no GPU test runs without a GPU, and CI allows only listed skips."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Triton 3.9 warns, once a process, about a default that 3.10 will change; say which one is meant.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
# Tensors are small and processes many: torch's threads would wait for one another most of the time.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# The runs of tests are none of the user's history.
os.environ.pop("ATTNBENCH_HISTORY", None)

# An example may take as long as it takes: how long is a question of the machine.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
settings.load_profile("any machine")

NEEDS_GPU = "needs a CUDA GPU"
NEEDS_HOPPER = "needs an sm_90"
SKIPS = tomllib.loads(Path(__file__).with_name("skips.toml").read_text(encoding="utf-8"))["reasons"]
_skipped: dict[str, str] = {}


@pytest.fixture(autouse=True)
def search_path_of_its_own() -> Iterator[None]:
    """What a test leaves on the search path, each process that later tests start would look through.

    Not what a library adds of its own, as setuptools does where it is imported.
    """
    before = [*sys.path]
    yield
    if left := [path for path in sys.path if path not in before and not path.startswith(sys.prefix)]:
        sys.path[:] = before
    assert not left


@pytest.fixture(scope="session", autouse=True)
def no_progress() -> None:
    """On a busy machine a command takes longer than the patience of its progress lines: none is said in this process."""
    from attnbench.cli import progress

    progress.PATIENCE_S = 3600.0


@pytest.fixture(scope="session")
def forked_worker() -> Iterator[Callable[..., list[str]]]:
    """The command of a forked worker; where workers import more than torch, a file of tests has its own."""
    from forked_workers import forking

    with forking() as command:
        yield command


@pytest.fixture
def forked_workers(forked_worker: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers start without importing torch; for tests of what they record."""
    from attnbench.machine import child

    started = child.command

    def command(module: str, *args: str) -> list[str]:
        return forked_worker(*args) if module == "attnbench.worker" else started(module, *args)

    monkeypatch.setattr(child, "command", command)


def pytest_configure() -> None:
    # Until all is collected; see pytest_collection_finish.
    gc.disable()
    # Under nohup, or as a shell's background job, this process was started deaf to these, and would start its children
    # so, which tests end by them. A handler is not passed on: it stays deaf, and they are not.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    gpu = torch.cuda.is_available()
    hopper = gpu and torch.cuda.get_device_capability() == (9, 0)
    for item in marked:
        if not gpu:
            item.add_marker(pytest.mark.skip(reason=NEEDS_GPU))
        elif not hopper and item.get_closest_marker("hopper"):
            item.add_marker(pytest.mark.skip(reason=NEEDS_HOPPER))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    # Thousands of tests, torch and triton stay: collecting garbage, which some tests do often, need not walk them.
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # or nanobind complains of what was never collected


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and isinstance(report.longrepr, tuple):
        _skipped[report.nodeid] = report.longrepr[2].removeprefix("Skipped: ")


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    unlisted = _unlisted(config)
    if unlisted:
        terminalreporter.section("skipped for a reason that tests/skips.toml does not list")
        for test, reason in unlisted.items():
            terminalreporter.write_line(f"{test}: {reason}")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    # Where tests were handed out (xdist), only the process that gathers the reports decides.
    if _unlisted(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _unlisted(config: pytest.Config) -> dict[str, str]:
    if not os.environ.get("CI") or hasattr(config, "workerinput"):
        return {}
    return {test: reason for test, reason in _skipped.items() if reason not in SKIPS}
