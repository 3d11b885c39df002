"""Signals that end a command: SIGTERM and SIGHUP do what Ctrl-C does, and what is finished is kept the same way."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class Ended(KeyboardInterrupt):
    """A signal but Ctrl-C ended the command."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def exit_code(ending: KeyboardInterrupt) -> int:
    """128 and the number of the signal, as a shell says it: 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP."""
    return 128 + (ending.number if isinstance(ending, Ended) else signal.SIGINT)


@contextlib.contextmanager
def like_ctrl_c() -> Iterator[None]:
    """While open, SIGTERM and SIGHUP raise `Ended`; one that is ignored (nohup) stays so."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                before[number] = signal.signal(number, _raise)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _raise(number: int, frame: FrameType | None) -> None:
    raise Ended(number)
