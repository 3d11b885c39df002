"""The only place that writes to the terminal: results on stdout, everything else on stderr."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, TextIO

from attnbench.text import for_terminal

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 200
"""Width of tables without a terminal."""


class Output:
    """Lines and tables of a command.

    If a flag sends data to stdout (``--json -``), `results_to_stderr` moves the tables to stderr, so that the pipe
    holds only the data.
    """

    def __init__(self, *, results_to_stderr: bool = False, quiet: bool = False) -> None:
        self.results_to_stderr = results_to_stderr
        self.quiet = quiet

    def line(self, text: str) -> None:
        """Write a line of the result."""
        _write(sys.stderr if self.results_to_stderr else sys.stdout, text)

    def note(self, text: str) -> None:
        """Write a line that is not part of the result, such as an error or a remark."""
        sys.stdout.flush()
        _write(sys.stderr, " ".join(text.split()))
        sys.stderr.flush()

    def flush(self) -> None:
        """Flush the streams, so that a closed pipe is noticed here."""
        sys.stdout.flush()

    def console(self) -> Console:
        """Return a console for tables, as wide as the terminal; without a terminal, wide enough for all columns."""
        from rich.console import Console

        from attnbench.report.terminal import trimmed

        class Plain(Console):
            def on_broken_pipe(self) -> None:
                """Let `main` handle it, as for every other writer; rich would exit with 1."""
                raise BrokenPipeError

        stream = sys.stderr if self.results_to_stderr else sys.stdout
        fixed = None if stream.isatty() or os.environ.get("COLUMNS") else PIPE_WIDTH
        return Plain(file=trimmed(stream), width=fixed, highlight=False, soft_wrap=False)

    def live_console(self) -> Console | None:
        """Return a console on stderr for a progress bar; None without a terminal."""
        if self.quiet or not sys.stderr.isatty():
            return None
        from rich.console import Console

        return Console(stderr=True)


def fill_closed_streams() -> bool:
    """Open a null device for standard streams that were closed (``>&-``).

    Otherwise the next opened files and pipes would get their numbers, and a worker's output would go there.

    Returns:
        Whether stdout was open.
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
    """Write a line without terminal control sequences; characters that the encoding lacks are replaced."""
    encoding = stream.encoding or "utf-8"
    text = for_terminal(text)
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
