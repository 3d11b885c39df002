"""Layouts of the seeds, one file each: the formats that people's scripts and spreadsheets read."""

from __future__ import annotations

import sys
from pathlib import Path

from attnbench.errors import RunFileError, absent, refusal, unknown, unreadable
from attnbench.formats import scan
from attnbench.formats.layouts.base import Layout
from attnbench.record import Run
from attnbench.store.files import is_file, is_folder


def layout_names() -> list[str]:
    """Return the names of all layouts, by file."""
    return scan.names(sys.modules[__name__])


def load_layout(name: str) -> Layout:
    """Find a layout by its name.

    Raises:
        UsageError: there is no such layout.
    """
    if name not in layout_names():
        raise unknown("layout", "name", name, layout_names())
    layout: Layout = scan.load(sys.modules[__name__], name).LAYOUT
    return layout


def check_layout(run: Run) -> None:
    """Refuse a run whose suite names an unknown layout.

    Raises:
        UsageError: there is no such layout.
    """
    if run.layout is not None and run.layout not in layout_names():
        raise unknown(f"suite {run.suite}", "layout", run.layout, layout_names())


def recognise(path: str | Path) -> Layout:
    """Return the layout of a file or folder to import.

    Raises:
        RunFileError: it has no known layout, or there is no such file.
    """
    path = Path(path)
    if not is_file(path) and not is_folder(path):
        raise RunFileError(refusal("import", "path", path, absent(path), "a file of a seed's layout"))
    for name in layout_names():
        layout = load_layout(name)
        if layout.recognises(path):
            return layout
    wrong = "is of no known layout"
    if is_file(path):
        try:
            path.read_text(encoding="utf-8-sig")
        except (OSError, ValueError) as error:
            wrong = unreadable(error)
    accepted = f"a file of layout {', '.join(layout_names())}"
    raise RunFileError(refusal("import", "path", path, wrong, accepted, "name it with --layout"))
