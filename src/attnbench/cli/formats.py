"""All formats for a run: the exporters of the store, and the page of the report."""

from __future__ import annotations

from pathlib import Path

from attnbench.formats.exports import check_target, export, exporter_names, load_exporter
from attnbench.formats.exports.base import Exporter
from attnbench.record import Run

PAGE = "html"
"The store may not import the report, so this module combines the two."


def format_names() -> list[str]:
    """Return the names of all formats, each of which is a flag."""
    return sorted([*exporter_names(), PAGE])


def load_format(name: str) -> Exporter:
    """Find a format by its name.

    Raises:
        UsageError: there is no such format.
    """
    if name == PAGE:
        from attnbench.report.html import EXPORTER

        return EXPORTER
    return load_exporter(name)


def check_format(name: str, target: str, by: str | None = None) -> None:
    """Refuse, before measuring, what `write_format` would refuse.

    Raises:
        UsageError: the format cannot be written to the target.
        Unavailable: a library that it needs is missing.
    """
    check_target(name, target, by, load=load_format)


def write_format(run: Run, name: str, target: str, by: str | None = None) -> list[Path]:
    """Write `run` in a format; return the files written, none for stdout.

    Raises:
        UsageError: the target cannot be written.
        Unavailable: a library is missing.
    """
    return export(run, name, target, by=by, load=load_format)
