"""Time in tests: nothing here depends on how fast the machine is.

What another process or thread does is waited for with `until`. What a limit of time does is tested on a `Clock`, which
moves only when it is told to. What something costs is counted in calls.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import pytest

PATIENCE_S = 600.0
"""Far more than anything takes on the slowest machine: it ends what would never come, and is no bound on speed."""

T = TypeVar("T")


def until(condition: Callable[[], T]) -> T:
    """The first true answer of `condition`; its last one, which is false, after `PATIENCE_S`."""
    deadline = time.monotonic() + PATIENCE_S
    while not (answer := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return answer


def gone(pid: int) -> bool:
    """Whether a process ends, or only waits to be reaped."""
    return until(lambda: not alive(pid))


def alive(pid: int) -> bool:
    """Whether a process is there now and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def calls_of(action: Callable[[], T]) -> tuple[T, int]:
    """What it gives, and how many functions it calls, of Python and from Python of C."""
    count = 0

    def called(frame: object, event: str, given: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(called)
    try:
        return action(), count
    finally:
        sys.setprofile(None)


class Clock:
    """Stands for the module `time` where it is put: a second is over when the test says so."""

    def __init__(self) -> None:
        self.now_ns = 10**12

    def pass_by(self, seconds: float) -> None:
        """Let time pass, and nobody wait."""
        self.now_ns += round(1e9 * seconds)

    def sleep(self, seconds: float) -> None:
        """As `time.sleep`, but at once over."""
        self.pass_by(seconds)

    def perf_counter_ns(self) -> int:
        """Nanoseconds by this clock."""
        return self.now_ns

    def perf_counter(self) -> float:
        """Seconds by this clock."""
        return self.perf_counter_ns() / 1e9

    monotonic = process_time = perf_counter

    def put_into(self, monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
        """Have these modules read this clock."""
        for module in modules:
            monkeypatch.setattr(module, "time", self)
