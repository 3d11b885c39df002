"""Signals that end a run while its groups are measured: results so far are collected first.

The first signal ends the run in order: groups being measured end after the current round, checked as usual, and no
other group is started.  The second ends them at once; results collected until then are kept.  From the third on, and
when no group is being measured, a signal does what it did before: it raises.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FrameType, TracebackType
from typing import Any

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
IN_ORDER, AT_ONCE = 1, 2
"""Number of the signal, from one."""


class Interruption(AbstractContextManager["Interruption"]):
    """While open, handles the signals that have a Python handler; outside the main thread it handles none.

    Args:
        on_signal: called in the handler, with the signal's name and whether to end at once; returns whether a group is
            being measured, which then ends by itself.
    """

    def __init__(self, on_signal: Callable[[str, bool], bool]) -> None:
        self._on_signal = on_signal
        self._before: dict[int, Any] = {}
        self.number: int | None = None
        "of the first signal"
        self.count = 0

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            for number in ENDING:
                if callable(before := signal.getsignal(number)):  # SIG_DFL and SIG_IGN are not replaced
                    self._before[number] = before
                    signal.signal(number, self._hear)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def pass_on(self) -> None:
        """Do what the first signal, if any, would have done without this."""
        if self.number is not None:
            self._before[self.number](self.number, None)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.number = self.number or number
        self.count += 1
        name = signal.Signals(self.number).name
        if self.count > AT_ONCE or not self._on_signal(name, self.count == AT_ONCE):
            self._before[number](number, frame)
