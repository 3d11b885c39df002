"""The one place that writes to the terminal: results on stdout, everything else on stderr."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, TextIO

from attnbench.text import for_terminal

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 200
"""Columns of a table that no terminal bounds."""


class Output:
    """Lines and tables of a command.

    Where a flag sends data to stdout (``--json -``), `results_to_stderr` moves the tables away, so
    that the pipe holds the data alone.
    """

    def __init__(self, *, results_to_stderr: bool = False, quiet: bool = False) -> None:
        self.results_to_stderr = results_to_stderr
        self.quiet = quiet

    def line(self, text: str) -> None:
        """Write a line of the result."""
        _write(sys.stderr if self.results_to_stderr else sys.stdout, text)

    def note(self, text: str) -> None:
        """Write a line that is not the result: an error, a remark."""
        sys.stdout.flush()
        _write(sys.stderr, " ".join(text.split()))
        sys.stderr.flush()

    def flush(self) -> None:
        """Hand over what is buffered, so that a reader who has gone is noticed here."""
        sys.stdout.flush()

    def console(self) -> Console:
        """A console for tables, as wide as the terminal; where there is none, wide enough for all."""
        from rich.console import Console

        from attnbench.report.terminal import trimmed

        class Plain(Console):
            def on_broken_pipe(self) -> None:
                """Let the edge answer, as for every other writer; rich would end the process with 1."""
                raise BrokenPipeError

        stream = sys.stderr if self.results_to_stderr else sys.stdout
        fixed = None if stream.isatty() or os.environ.get("COLUMNS") else PIPE_WIDTH
        return Plain(file=trimmed(stream), width=fixed, highlight=False, soft_wrap=False)

    def live_console(self) -> Console | None:
        """A console on stderr for a progress bar; None where nobody looks."""
        if self.quiet or not sys.stderr.isatty():
            return None
        from rich.console import Console

        return Console(stderr=True)


def fill_closed_streams() -> bool:
    """Give standard streams that were closed (``>&-``) a place to write to.

    Left empty, their numbers would go to the next files and pipes opened, and a worker's output into those.

    Returns:
        Whether stdout leads anywhere.
    """
    open_stdout = sys.stdout is not None
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115 (to the end)
    return open_stdout


def _write(stream: TextIO, text: str) -> None:
    """Write a line: nothing in it steers the terminal, and a letter that its encoding lacks ends no command."""
    encoding = stream.encoding or "utf-8"
    text = for_terminal(text)
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
