"""The report: runs as one HTML file that needs nothing beside it and asks nothing of any network.

What is read without a script (facts, tables, notes, reasons) is written here; the script sorts and
filters them, lists all rows, and draws each chart when it comes into view.
"""

from __future__ import annotations

from collections.abc import Sequence

from attnbench.formats.exports.base import Exporter
from attnbench.record import Run
from attnbench.report.libraries import require

LIBRARIES = ("altair", "jinja2")


def ready() -> None:
    """Find out, before anything is measured, whether a page can be made here.

    Raises:
        Unavailable: a library is missing; the line says what installs it.
    """
    require("report", LIBRARIES)


def page(runs: Sequence[Run]) -> str:
    """The text of the file.

    Args:
        runs: at least one, with their statistics derived; several stand in one page, their charts and rows joined.

    Raises:
        Unavailable: a library is missing.
    """
    ready()
    from attnbench.report.html.assemble import assemble

    return assemble(runs)


def render(run: Run) -> bytes:
    """The file of one run; a letter that UTF-8 has no code for (half a surrogate pair) becomes a question mark."""
    return page([run]).encode("utf-8", "replace")


EXPORTER = Exporter(
    title="a page for the browser: tables and charts in one file", text=True, render=render, ready=ready
)
