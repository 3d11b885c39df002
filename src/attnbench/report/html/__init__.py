"""The report: runs as one self-contained HTML file that makes no network requests.

Everything readable without a script (facts, tables, notes, reasons) is in the HTML; the script sorts and
filters tables, lists all rows, and draws each chart when it comes into view.
"""

from __future__ import annotations

from collections.abc import Sequence

from attnbench.formats.exports.base import Exporter
from attnbench.record import Run
from attnbench.report.libraries import require

LIBRARIES = ("altair", "jinja2")


def ready() -> None:
    """Check, before anything is measured, that a page can be made on this machine.

    Raises:
        Unavailable: a library is missing; the message has the command that installs it.
    """
    require("report", LIBRARIES)


def page(runs: Sequence[Run]) -> str:
    """Return the text of the file.

    Args:
        runs: at least one, with their statistics derived; several share one page, with joint charts and rows.

    Raises:
        Unavailable: a library is missing.
    """
    ready()
    from attnbench.report.html.assemble import assemble

    return assemble(runs)


def render(run: Run) -> bytes:
    """Return the file of one run; a character without a UTF-8 encoding (a lone surrogate) becomes a question mark."""
    return page([run]).encode("utf-8", "replace")


EXPORTER = Exporter(
    title="a page for the browser: tables and charts in one file", text=True, render=render, ready=ready
)
