"""Signals that end a load wait while a request is accounted for: a line of the ledger is written whole or not at all."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Ending(AbstractContextManager["Ending"]):
    """While open, signals that have a handler of Python's wait for the end of a block of `whole`.

    In a thread but the main one, which no signal interrupts, nothing is changed.
    """

    def __init__(self) -> None:
        """Not open yet."""
        self._before: dict[int, Any] = {}
        self._inside = False
        self._waits: int | None = None
        "the first signal that came in a block"

    def __enter__(self) -> Ending:
        """Take the signals' handlers."""
        if threading.current_thread() is threading.main_thread():
            for number in ENDING:
                if callable(before := signal.getsignal(number)):  # SIG_DFL and SIG_IGN stay what they are
                    self._before[number] = before
                    signal.signal(number, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        """Put them back."""
        for number, before in self._before.items():
            signal.signal(number, before)

    @contextmanager
    def whole(self) -> Iterator[None]:
        """A block that no signal interrupts; one that came in it does at its end what it would have done."""
        self._inside = True
        try:
            yield
        finally:
            self._inside = False
            if (number := self._waits) is not None:
                self._waits = None
                self._before[number](number, None)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._inside:
            self._waits = self._waits or number
        else:
            self._before[number](number, frame)
