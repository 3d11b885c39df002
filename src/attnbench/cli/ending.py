"""Handle signals that end a command: SIGTERM and SIGHUP act like Ctrl-C, and finished work is kept the same way."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class Ended(KeyboardInterrupt):
    """A signal other than SIGINT ended the command."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def exit_code(ending: KeyboardInterrupt) -> int:
    """Return 128 plus the number of the signal, as a shell does: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP."""
    return 128 + (ending.number if isinstance(ending, Ended) else signal.SIGINT)


@contextlib.contextmanager
def like_ctrl_c() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise `Ended` while the block runs; an ignored signal (nohup) stays ignored."""
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
